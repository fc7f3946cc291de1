"""Whether CMD is one node's part of a job of several, and which part: by Slurm's word, torchrun's options, or --exchange."""

import re
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from rankpatrol.core.errors import UsageProblem
from rankpatrol.core.records import Record
from rankpatrol.launch.rundir import Cluster
from rankpatrol.launch.shim.torchrun_flags import read_flags, torchruns_words

_WANTED = {"nnodes": "1:1", "node-rank": "", "rdzv-endpoint": "", "rdzv-id": "", "master-addr": "", "max-restarts": "0"}
_NO_WORD = frozenset({"", "none"})
_NO_NAME = (
    "All nodes must call this run by one name, and see one job directory. Add the same --run-id ID on every node: "
    "rankpatrol run --run-id exp7 torchrun --nnodes …"
)


class Given(Record, frozen=True, kw_only=True):
    """What the user said to `run` of it."""

    run_id: str | None = None
    exchange: str | None = None


def node_part(command: Sequence[str], environment: Mapping[str, str], given: Given) -> Cluster | None:
    """Our part of a job of several nodes; None where it has one. Raises UsageProblem where the nodes have no name in common."""
    options = torchrun_options(command, environment)
    slurm = _slurm(environment) if options is not None else None
    several = options is not None and _most(options["nnodes"]) > 1
    if not (given.exchange or slurm or several):
        return None
    options = options or dict(_WANTED)
    host = environment.get("SLURMD_NODENAME") or socket.gethostname()
    # Two nodes of a job may share one machine.
    ours = f"{host}.{options['node-rank']}" if options["node-rank"].isdigit() else host
    run = given.run_id or (slurm or {}).get("run") or _name_of(options)
    if slurm and given.run_id and (again := which_restart(environment)):
        run = f"{given.run_id}.{again}"  # queued again, it bears the same name, and is another run
    if run is None:
        raise UsageProblem("this job has several nodes, and no name that all of them know", help=_NO_NAME)
    first = slurm["first"] == "yes" if slurm else _is_first(options, given.exchange)
    return Cluster(node=ours, first=first, run=run, host=_host_of(options, given.exchange), meet_at=given.exchange)


def torchrun_options(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str] | None:
    """Torchrun's own options that tell of nodes, each as typed, else from PET_…, else its default. None where CMD is no torchrun."""
    words = torchruns_words(command)
    if words is None:
        return None
    found = {name: environment.get(f"PET_{name.replace('-', '_').upper()}", default) for name, default in _WANTED.items()}
    flags, _ = read_flags(words)
    found.update({name: flags[f"--{name}"] for name in _WANTED if f"--{name}" in flags})
    return found


def which_restart(environment: Mapping[str, str]) -> str:
    """Which start of this job this is, where Slurm has queued it again: SLURM_RESTART_COUNT is not set before (sbatch(1))."""
    count = environment.get("SLURM_RESTART_COUNT", "")
    return count if count.isdecimal() and count.isascii() and int(count) > 0 else ""


def restarts_in_place(command: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """How often torchrun will start a node's ranks again, by its option or what `run` lends it; None where that is not known."""
    options = torchrun_options(command, environment)
    number = options["max-restarts"] if options is not None else ""
    return int(number) if number.isdecimal() and len(number) < 7 else None


def _most(nnodes: str) -> int:
    """Of `4` or `2:4`, the most."""
    last = nnodes.rpartition(":")[2]
    return int(last) if last.isdigit() and len(last) < 7 else 1


def _slurm(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Our place in a step of several nodes with one task each: srun's own words (srun(1), OUTPUT ENVIRONMENT VARIABLES).

    None in a heterogeneous job: steps of two of its components may bear one number, and each counts its own nodes from 0.
    """
    if environment.get("SLURM_HET_SIZE", "1") != "1":
        return None
    nodes = environment.get("SLURM_STEP_NUM_NODES", "1")
    step, node = environment.get("SLURM_STEP_ID", ""), environment.get("SLURM_NODEID", "")
    if not (step.isdigit() and node.isdigit() and nodes.isdigit() and int(nodes) > 1):
        return None
    again = environment.get("SLURM_RESTART_COUNT", "0")
    return {"first": "yes" if node == "0" else "no", "run": f"slurm-{environment.get('SLURM_JOB_ID', '')}.{step}.{again}"}


def _name_of(options: Mapping[str, str]) -> str | None:
    """The run's name by torchrun's own options."""
    if options["rdzv-id"] not in _NO_WORD:
        return options["rdzv-id"]
    return options["rdzv-endpoint"] or options["master-addr"] or None


def _is_first(options: Mapping[str, str], exchange: str | None) -> bool:
    if options["node-rank"].isdigit() and not exchange:
        return options["node-rank"] == "0"
    return is_local(_host_of(options, exchange))


def _host_of(options: Mapping[str, str], exchange: str | None) -> str:
    """The first node, as the others reach it: torchrun's ranks meet there as well."""
    if exchange:
        return urlsplit(exchange).hostname or ""
    endpoint = options["rdzv-endpoint"].partition(",")[0]
    host = endpoint.rpartition(":")[0] if ":" in endpoint else endpoint
    return (host or options["master-addr"]).strip("[]")


def is_local(host: str) -> bool:
    """True where this name or address is this machine's: only its own addresses can be bound (bind(2))."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


def plain_name(run: str) -> str:
    """A run's name as a part of a folder's."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", run)
