"""`rankpatrol affinity`: this machine's topology, the plan for its ranks, and an audit of those that run."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from rankpatrol.affinity import binder, kernel, sysfs
from rankpatrol.affinity.audit import AuditVerdict, RankAudit
from rankpatrol.affinity.auditing import audit_of, place_on
from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.machine import Gpu, Machine, Nic
from rankpatrol.affinity.measure import NodeSpeed, measure
from rankpatrol.affinity.nics import NearestNics, nearest_nics
from rankpatrol.affinity.plan import (
    BIND,
    CORE,
    NO_MEMORY,
    NODE,
    PREFERRED,
    REFUSED,
    STRICT,
    RankPlan,
    Want,
    describe,
    document,
)
from rankpatrol.affinity.running import RunningRank, is_closed, running_process, running_ranks
from rankpatrol.affinity.topo_m import disagreements, read_topo
from rankpatrol.affinity.visible import Choice, seen_gpus
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import BadInput, ExitCode, NoPermission, UsageProblem
from rankpatrol.core.records import Missing


class _TextFile(GivenPath):
    """What a command printed, saved in a file, or - for standard input: its text."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        try:
            content = sys.stdin.buffer.read(_MOST_BYTES) if str(path) == "-" else path.read_bytes()
            return content.decode()
        except PermissionError as problem:
            raise NoPermission(f"{path} cannot be read", help="Run it as the user who owns it, or give a copy.") from problem
        except OSError as problem:
            raise BadInput(f"{path} cannot be read: {problem.strerror}", help=_SAVE) from problem
        except UnicodeDecodeError as problem:
            raise BadInput(f"{path} is no text", help=_SAVE) from problem


_SAVE = "Save it with: nvidia-smi topo -m > topo.txt"
_MOST_BYTES = 16 << 20
_FOLDER = GivenPath(exists=True, file_okay=False, as_type=str)
_ROOT = click.option("--root", type=_FOLDER, default="/", show_default=True, help="Read sysfs and /proc below this folder.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(short_help="NUMA: where GPUs and memory are, where ranks run.")
def affinity() -> None:
    """NUMA: where GPUs, CPUs and memory are, where ranks belong, and where they really run."""


@affinity.command(short_help="Nodes, CPUs, GPUs and their network adapters.")
@click.option("--measure", "measured", is_flag=True, help="Measure latency and bandwidth of each node's memory; some seconds of one CPU.")
@click.option(
    "--topo",
    type=_TextFile(),
    metavar="FILE",
    help="Cross-check with the output of nvidia-smi topo -m (- for standard input).  [default: no check]",
)
@_ROOT
@_JSON
def show(*, measured: bool, topo: str | None, root: str, as_json: bool) -> int:
    """Nodes, CPUs, GPUs and the network adapters nearest to them. Exit code: 0, or 1 where witnesses contradict each other."""
    ground, held = binder.survey([os.environ], root, ask_driver=True), kernel.held()
    nics = sysfs.read_nics(root)
    doubts = _doubts(ground, topo)
    speeds = list(measure(ground.machine, held.cpus)) if measured else []
    if as_json:
        _print_json(_shown(ground, held, nics, doubts, speeds))
    else:
        _print_machine(ground.machine, held, root)
        for gpu in ground.gpus:
            say(f"GPU {_gpu_words(gpu, ground)}")
            say(f"    network: {_network_words(nearest_nics(gpu, nics))}")
        if not ground.gpus:
            say("no GPU is seen here")
        for speed in speeds:
            say(_speed_words(speed))
        for doubt in doubts:
            say(f"warning: {doubt}")
    return ExitCode.WARNING if doubts else ExitCode.OK


@affinity.command(short_help="Where each rank of a job would be bound.")
@click.option(
    "--ranks", type=click.IntRange(min=1), metavar="N", help="How many ranks this machine will run.  [default: one a visible GPU]"
)
@click.option("--mode", type=click.Choice([NODE, CORE]), default=NODE, show_default=True, help="Share a node's CPUs, or split its cores.")
@click.option(
    "--memory",
    type=click.Choice([PREFERRED, STRICT, NO_MEMORY]),
    default=PREFERRED,
    show_default=True,
    help="How memory is bound: see `rankpatrol bind --help`.",
)
@_ROOT
@_JSON
def plan(*, ranks: int | None, mode: str, memory: str, root: str, as_json: bool) -> int:
    """Where each rank of a job started here would be bound, from this very cpuset and environment. Nothing is changed.

    Exit code: 0, or 1 where a rank would not be bound though there is something to bind.
    """
    ground, held = binder.survey([os.environ], root), kernel.held()
    if root != "/":  # another machine: all of it is allowed
        held = kernel.Held(ground.machine.cpus(), frozenset(ground.machine.nodes), None)
    count = ranks or max(1, len(seen_gpus(os.environ, ground.gpus, ground.word.mig).gpus))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "MPI_"))}
    environments = [{**environment, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)} for rank in range(count)]
    made = binder.plan_job(environments, held, Want(mode, memory), ground)
    if as_json:
        _print_json({"ranks": [document(one) for one in made]})
    else:
        for one in made:
            say(f"local rank {one.rank}: {describe(one)}")
            for note in one.notes:
                say(f"    {note}")
        _print_left_over(made, held, mode)
    return ExitCode.WARNING if any(one.decision == REFUSED for one in made) else ExitCode.OK


@affinity.command(short_help="Whether running ranks are where their GPUs are.")
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    metavar="PID",
    multiple=True,
    help="Look at this process and its descendants; may be repeated.  [default: all ranks]",
)
@click.option(
    "--gpu",
    metavar="PCI",
    help="The GPU of the process named by --pid, by its PCI address (0000:18:00.0).  [default: what its environment says]",
)
@_JSON
def check(*, pids: tuple[int, ...], gpu: str | None, as_json: bool) -> int:
    """Where the threads of running ranks may run, and where their memory lies: with their GPU or not.

    Exit code: 0, or 1 where a rank is misbound, 3 where that cannot be told of one.
    """
    if gpu is not None and len(pids) != 1:
        raise UsageProblem("--gpu needs exactly one --pid", help="rankpatrol affinity check --pid PID --gpu 0000:18:00.0")
    running = [_process(pid) for pid in pids] if pids else list(running_ranks())
    if not running and not as_json:
        say("no rank runs here that this user may look at (a process with LOCAL_RANK, SLURM_LOCALID … in its environment)")
    ground = binder.survey([rank.environment for rank in running], ask_driver=True)
    audits = [_audit(rank, ground, gpu) for rank in running]
    if as_json:
        _print_json({"ranks": audits})
    else:
        for audit in audits:
            for finding in audit.findings:
                say(f"{audit.verdict.replace('_', ' ')}: {finding}")
            if audit.verdict == AuditVerdict.MISBOUND:
                say(f"    which GPU it uses is known so: {audit.gpu_known_by}")
    return _exit_code(audits)


def _process(pid: int) -> RunningRank:
    found = running_process(pid)
    if isinstance(found, Missing):
        kind = NoPermission if is_closed(pid) else BadInput
        raise kind(found.reason, help="Name a running process that you may look at (same user, or root).")
    return found


def _audit(rank: RunningRank, ground: binder.Ground, address: str | None) -> RankAudit:
    if address is None:
        return audit_of(rank, ground)
    named = sysfs.read_gpu(address.lower())
    return audit_of(rank, ground, Choice((), f"there is no PCI device {address}") if named is None else Choice((named,), "it was named"))


def _exit_code(audits: Iterable[RankAudit]) -> ExitCode:
    verdicts = {audit.verdict for audit in audits}
    if AuditVerdict.MISBOUND in verdicts:
        return ExitCode.WARNING
    return ExitCode.UNKNOWN if AuditVerdict.UNKNOWN in verdicts else ExitCode.OK


def _doubts(ground: binder.Ground, topo: str | None) -> list[str]:
    """Where two witnesses contradict each other."""
    places = [(gpu, place_on(ground, gpu)) for gpu in ground.gpus]
    found = [place.why for _, place in places if place.code == "contradiction"]
    if topo is not None:
        rows = read_topo(topo)
        if isinstance(rows, Missing):
            raise BadInput(rows.reason, help=_SAVE)
        known = {at: (place.node.cpus, place.node.number) for at, (_, place) in enumerate(places) if place.node is not None}
        found += disagreements(rows, known)
    return found


def _print_machine(machine: Machine, held: kernel.Held, root: str) -> None:
    with_cpus = machine.with_cpus()
    say(f"{len(with_cpus)} NUMA node{'s have' if len(with_cpus) != 1 else ' has'} the {len(machine.cpus())} CPUs")
    for node in machine.nodes.values():
        far = ", ".join(f"{distance} to node {to}" for to, distance in node.distances.items() if to != node.number)
        cpus = f"CPUs {format_cpus(node.cpus)}" if node.cpus else "memory only"
        words = [cpus, _memory_words(node.number, root), f"distance {far}" if far else ""]
        say(f"node {node.number}: {', '.join(word for word in words if word)}")
    cores = sysfs.read_cores(machine.cpus(), root)
    threads = max((len(core) for core in cores.cores), default=1)
    caches = f", {say_count(len(cores.caches), 'last-level cache')}" if cores.caches else ""
    say(f"{len(cores.cores)} cores of up to {threads} thread{'s' if threads > 1 else ''}{caches}")
    if root == "/":
        say(f"this process may use CPUs {format_cpus(held.cpus)} and memory of node {format_cpus(held.memory_nodes)}")
    if len(with_cpus) <= 1:
        say("there is nothing to bind on this machine")


def _memory_words(node: int, root: str) -> str:
    text = sysfs.read(root, f"sys/devices/system/node/node{node}/meminfo") or ""
    size = next((line.split()[-2] for line in text.splitlines() if "MemTotal:" in line), "")
    return f"{int(size) / (1 << 20):.1f} GiB" if size.isdecimal() else ""


def _gpu_words(gpu: Gpu, ground: binder.Ground) -> str:
    place = place_on(ground, gpu)
    words = [gpu.address, gpu.model, gpu.uuid or "", f"node {place.node.number}" if place.node else f"node not known: {place.why}"]
    return ", ".join([*filter(None, words), *([] if gpu.usable else ["not given to this process"])])


def _network_words(near: NearestNics | Missing) -> str:
    return near.reason if isinstance(near, Missing) else f"{', '.join(near.names)} {near.how} ({near.advice})"


def _speed_words(speed: NodeSpeed) -> str:
    latency = speed.latency_ns.reason if isinstance(speed.latency_ns, Missing) else f"{speed.latency_ns:.0f} ns"
    copied = speed.copy_gb_per_s.reason if isinstance(speed.copy_gb_per_s, Missing) else f"{speed.copy_gb_per_s:.1f} GB/s"
    return f"CPUs of node {speed.from_node}, memory of node {speed.to_node}: {latency}, {copied} (a copy by one thread)"


def _print_left_over(made: Iterable[RankPlan], held: kernel.Held, mode: str) -> None:
    """With few GPUs on few nodes a good part of the machine may stay idle: better said before than wondered at."""
    bound = [one for one in made if one.decision == BIND]
    left = held.cpus - {cpu for one in bound for cpu in one.cpus}
    if bound and len(left) * 4 > len(held.cpus):
        say(f"CPUs {format_cpus(left)} get no rank in mode {mode}: no GPU is on their nodes, or not for these ranks")


def _shown(
    ground: binder.Ground, held: kernel.Held, nics: tuple[Nic, ...], doubts: list[str], speeds: list[NodeSpeed]
) -> Mapping[str, Any]:
    nodes = [
        {"node": node.number, "cpus": sorted(node.cpus), "has_memory": node.has_memory, "distances": node.distances}
        for node in ground.machine.nodes.values()
    ]
    gpus = []
    for gpu in ground.gpus:
        place = place_on(ground, gpu)
        gpus.append(
            {
                "address": gpu.address,
                "vendor": gpu.vendor,
                "model": gpu.model,
                "uuid": gpu.uuid,
                "usable": gpu.usable,
                "firmware_node": gpu.node,
                "node": place.node.number if place.node else None,
                "why": place.why,
                "network": nearest_nics(gpu, nics),
            }
        )
    return {
        "nodes": nodes,
        "gpus": gpus,
        "allowed": {"cpus": sorted(held.cpus), "memory_nodes": sorted(held.memory_nodes)},
        "driver": ground.word.problem,
        "warnings": doubts,
        "speeds": speeds,
    }


def _print_json(document: object) -> None:
    say_json(document, indent=2)
