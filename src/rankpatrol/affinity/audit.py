"""Judges running ranks: may their threads run, and does their memory lie, where their GPU is?"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec.structs import replace

from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.machine import Cpus, Gpu, Machine
from rankpatrol.affinity.plan import Place
from rankpatrol.affinity.visible import Choice, choose, local_rank, seen_gpus
from rankpatrol.core.records import Missing, Record

# Below a quarter, memory elsewhere is what every process has: code, caches, what was there before the start. Our choice.
REMOTE_SHARE_RATIO = 0.25
_TOO_LITTLE_BYTES = 16 << 20
# Anonymous memory that has a file's name nevertheless.
_ANONYMOUS = ("/dev/shm/", "/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage")  # ruff: ignore[S108] - names to compare with


class AuditVerdict(StrEnum):
    """`loose` is not bound, but nothing lies elsewhere (yet)."""

    BOUND = "bound"
    LOOSE = "loose"
    MISBOUND = "misbound"
    NOTHING = "nothing_to_bind"
    UNKNOWN = "unknown"


class RunningProcess(Record, frozen=True, kw_only=True):
    """A rank or one of its descendants: the affinity of each thread, and its own memory by node in bytes."""

    pid: int
    name: str
    threads: Mapping[int, frozenset[int]]
    memory_bytes: Mapping[int, int] | Missing


class RankAudit(Record, frozen=True, kw_only=True):
    """One rank's verdict, each reason a sentence with numbers."""

    rank: int | None
    pid: int
    verdict: AuditVerdict
    gpu: str | None
    gpu_known_by: str
    node: int | None
    findings: tuple[str, ...]
    threads: int
    threads_elsewhere: int
    memory_bytes: Mapping[int, int]


class Subject(Record, frozen=True):
    """Who is judged: the rank's number (None: no rank), and its processes, its own first."""

    rank: int | None
    processes: tuple[RunningProcess, ...]

    @property
    def words(self) -> str:
        return f"process {self.processes[0].pid}" if self.rank is None else f"rank {self.rank}"


class Seen(Record, frozen=True):
    """What was seen of a running rank's GPUs: device files that it has open, and the GPUs (PCI addresses) on which the driver lists it.

    `elsewhere`: it lives in another cgroup or container than we do, where GPUs may have other numbers.
    """

    opened: frozenset[str]
    computes_on: frozenset[str]
    elsewhere: bool


def used_gpus(environment: Mapping[str, str], gpus: Sequence[Gpu], mig: Mapping[str, str], seen: Seen) -> Choice:
    """The GPU of a running rank, seen from outside: the driver's word and its open files first, its environment among those."""
    place = local_rank(environment)
    everything = [gpu._replace(usable=True) for gpu in gpus]
    opened = tuple(gpu for gpu in everything if gpu.device in seen.opened)
    listed = tuple(gpu for gpu in everything if gpu.address in seen.computes_on)
    held, how = (listed, "the driver lists it there") if listed else (opened, "it has no other open")
    if len(held) == 1:
        return Choice(held, how)
    if held:
        likely = {choose(seen_gpus(environment, them, mig), place).gpus for them in (opened, everything) if them}
        single = {chosen for chosen in likely if len(chosen) == 1 and chosen[0] in held}
        return Choice(single.pop(), "by its environment") if len(single) == 1 else Choice(held, "it uses several GPUs")
    doubt = "it has no GPU open yet, and in another container or cgroup GPUs have other numbers" if seen.elsewhere else None
    return choose(seen_gpus(environment, everything if seen.elsewhere else gpus, mig, doubt), place)


def memory_by_node(numa_maps: str) -> dict[int, int]:
    """A process's own memory by node in bytes, from /proc/PID/numa_maps (numa(7)); files it only maps are left out."""
    found: dict[int, int] = {}
    for line in numa_maps.splitlines():
        words = line.split()
        pairs = dict(word.split("=", 1) for word in words[2:] if "=" in word)
        if "file" in pairs and not pairs["file"].startswith(_ANONYMOUS):
            continue
        page_bytes = int(pairs.get("kernelpagesize_kB", "4")) * 1024
        for name, pages in pairs.items():
            if name[0] == "N" and name[1:].isdecimal():
                found[int(name[1:])] = found.get(int(name[1:]), 0) + int(pages) * page_bytes
    return found


def judge(subject: Subject, choice: Choice, place: Place, machine: Machine) -> RankAudit:
    """What is to be said of one rank whose GPU is (or whose GPUs are all) at this place."""
    audit = _unjudged(subject, choice)
    if len(machine.with_cpus()) <= 1:
        return replace(audit, verdict=AuditVerdict.NOTHING, findings=(f"{subject.words}: one NUMA node has all the CPUs",))
    node = place.node
    if node is None:
        return replace(audit, findings=(f"{subject.words}: {place.why}",))
    where = f"its GPU {audit.gpu} is on node {node.number}" if audit.gpu else f"its GPUs are on node {node.number}"
    threads = [cpus for process in subject.processes for cpus in process.threads.values()]
    own = {node.number, *(gpu.node for gpu in choice.gpus if gpu.node is not None)}
    audit = replace(audit, node=node.number, threads_elsewhere=sum(not cpus & node.cpus for cpus in threads))
    findings = (*_thread_findings(subject, node.cpus, machine, where), *_memory_findings(subject, own, where))
    if findings:
        return replace(audit, verdict=AuditVerdict.MISBOUND, findings=findings)
    loose = sum(not cpus <= node.cpus for cpus in threads)
    if loose:
        said = f"{subject.words} is not bound: {loose} of {len(threads)} threads may run on other nodes too, {where}"
        return replace(audit, verdict=AuditVerdict.LOOSE, findings=(said,))
    return replace(audit, verdict=AuditVerdict.BOUND, findings=(_all_well(subject, len(threads), where),))


def _all_well(subject: Subject, threads: int, where: str) -> str:
    unread = next((process.memory_bytes for process in subject.processes if isinstance(process.memory_bytes, Missing)), None)
    held = "and its memory stay there" if unread is None else f"stay there; of its memory not all is known: {unread.reason}"
    return f"{subject.words}: {where}; all {threads} threads {held}"


def _unjudged(subject: Subject, choice: Choice) -> RankAudit:
    return RankAudit(
        rank=subject.rank,
        pid=subject.processes[0].pid,
        verdict=AuditVerdict.UNKNOWN,
        gpu=choice.gpus[0].address if len(choice.gpus) == 1 else None,
        gpu_known_by=choice.why,
        node=None,
        findings=(),
        threads=sum(len(process.threads) for process in subject.processes),
        threads_elsewhere=0,
        memory_bytes=_together(subject.processes),
    )


def _thread_findings(subject: Subject, cpus: Cpus, machine: Machine, where: str) -> Iterable[str]:
    for process in subject.processes:
        elsewhere = [threads for threads in process.threads.values() if not threads & cpus]
        if not elsewhere:
            continue
        who = subject.words if process is subject.processes[0] else f"{process.name} ({process.pid}) of {subject.words}"
        on = sorted(node.number for node in machine.with_cpus() if any(node.cpus & threads for threads in elsewhere))
        told = format_cpus(cpu for threads in elsewhere for cpu in threads)
        nodes = f"node {on[0]}" if len(on) == 1 else f"nodes {format_cpus(on)}"
        yield f"{len(elsewhere)} of {len(process.threads)} threads of {who} can only run on {nodes} (CPUs {told}), {where}"


def _memory_findings(subject: Subject, own: set[int], where: str) -> Iterable[str]:
    memory = _together(subject.processes)
    total = sum(memory.values())
    remote = {node: size for node, size in memory.items() if node not in own}
    if total < _TOO_LITTLE_BYTES or sum(remote.values()) < REMOTE_SHARE_RATIO * total:
        return
    on = ", ".join(f"node {node}" for node in sorted(remote, key=lambda node: -remote[node]))
    share = round(100 * sum(remote.values()) / total)
    yield f"{share} % of {subject.words}'s memory ({_gib(sum(remote.values()))} of {_gib(total)}) is on {on}, {where}"


def _together(processes: Iterable[RunningProcess]) -> dict[int, int]:
    found: dict[int, int] = {}
    for process in processes:
        if not isinstance(process.memory_bytes, Missing):
            for node, size in process.memory_bytes.items():
                found[node] = found.get(node, 0) + size
    return found


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
