"""The answer to GPU counters: whether GPUs work, spin in a kernel, or are gone."""

import re

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record

_CSV_HEADER = re.compile(r"^\s*#?\s*(?:index|gpu|timestamp|name)\b.*(?:utilization|util)", re.IGNORECASE)
_QUERY = re.compile(r"--query-gpu=([\w.,]+)")
_TABLE_ROW = re.compile(r"\|\s*\S*\s+\d+C?\s+P\d+\s+(\d+)W\s*/\s*(\d+)W\s*\|\s*\d+MiB\s*/\s*\d+MiB\s*\|\s*(\d{1,3})%")
_DMON = re.compile(r"^\s+(\d+)\s+(\d+)\s+\d+\s+(?:\d+|-)\s+(\d+)\s+(\d+)\s")
_NAMED = re.compile(r"gpu\S*[ =](\d+).*?util\w*[= ](\d{1,3}).*?power\w*[= ](\d+(?:\.\d+)?)", re.IGNORECASE)
_RAS_COUNT = re.compile(r"\brank[ =](\d+)\b((?:(?!\brank[ =]).)*)", re.IGNORECASE)
_RAS_COMMUNICATOR = re.compile(r"^\s*#(\d+-\d+)\b")
_COUNT = re.compile(
    r"\b(AllReduce|AllGather|ReduceScatter|Broadcast|AlltoAll|AllToAll|Reduce|Send|Recv|SendRecv)[ =:]+(\d+)", re.IGNORECASE
)
_LAGGING = re.compile(r"(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)", re.IGNORECASE)
_RAS_RANK = re.compile(r"^\s*Rank (\d+) -- GPU", re.IGNORECASE)
_RAS = re.compile(r"ncclras|Communicators\.\.\.|\bRAS\b|# in group|launched up to operation", re.IGNORECASE)
_LOST = re.compile(r"GPU is lost|Unable to determine the device handle|has fallen off the bus|No devices were found|ERR!", re.IGNORECASE)
_FROZEN = re.compile(r"identical|unchanged|same counts?|no change|not moved|frozen|later: (?:the )?same", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid \([^)]*\):? ?(\d+)")
_XIDS = {
    **dict.fromkeys((79, 119, 120, 62, 109, 110, 143), "gpu_lost"),
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 156, 158, 160), "gpu_ecc"),
    **dict.fromkeys((13, 31, 43, 32), "cuda_illegal_access"),
}
_KERNEL = (
    (re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory"), "host_oom_kill"),
    (re.compile(r"mlx5\w*.*(?:link down|Link down|port_inactive)|NIC Link is Down|lost carrier"), "ib_link_flap"),
    (re.compile(r"nfs: server \S+ not responding|LustreError|blocked for more than \d+ seconds"), "filesystem_stall"),
)
_KERNEL_LINE = re.compile(r"^\s*(?:\[\s*\d+\.\d+\]|\[\w{3} \w{3} +\d+|\w{3} +\d+ [\d:]+ \S+ kernel:|kern\s*:)")
# A job's own lines: then the log is the evidence, and counters are beside it.
_JOB_LOG = re.compile(
    r"ProcessGroupNCCL|NCCL INFO|^\[?(?:rank ?\d+|default\d+)\]|\bRuntimeError\b|\bstep[= ]\d+.*(?:loss|hb)|phase=", re.MULTILINE
)
_BUSY_PERCENT = 90
_IDLE_PERCENT = 10
# A GPU that computes draws most of its limit; one that spins in a kernel of NCCL, or of a livelock, little more than when idle.
_SPIN_SHARE = 0.45
_SPIN_WATTS = 160.0


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU's counters; `limit_w` is None where it is not printed."""

    busy_percent: float
    power_w: float | None
    limit_w: float | None = None


def diagnose_gpus(text: str) -> Diagnosis | None:
    """`hang`, `node_fault`, `healthy` or `undetermined`, or None where the text holds no GPU counters."""
    if _JOB_LOG.search(text):
        return None
    return _kernel(text) or _lost(text) or _counted(text) or _worked(text)


def _lost(text: str) -> Diagnosis | None:
    found = _LOST.search(text) if "NVIDIA-SMI" in text or "nvidia-smi" in text or "Unable to determine" in text else None
    if found is None:
        return None
    return Diagnosis(
        verdict="node_fault",
        cause="gpu_lost",
        certainty=Certainty.SUPPORTED,
        sentence=f"the driver does not reach a GPU any more: {found[0]}",
        reasons_for=(found[0],),
        suggested=("Drain the node and read dmesg for NVRM: Xid; a GPU off the bus needs a reset or a reboot",),
    )


def _kernel(text: str) -> Diagnosis | None:
    """The kernel's own lines, where they are all that is shown."""
    lines = [line for line in text.splitlines() if line.strip()]
    kernel = [line for line in lines if _KERNEL_LINE.match(line) or "NVRM:" in line]
    if not kernel or len(kernel) * 2 < len(lines):
        return None
    causes = []
    for line in kernel:
        if found := _XID.search(line):
            causes.append((_XIDS.get(int(found[1]), "unknown"), line.strip()))
        causes += [(cause, line.strip()) for pattern, cause in _KERNEL if pattern.search(line)]
    order = ("gpu_lost", "gpu_ecc", "host_oom_kill", "ib_link_flap", "filesystem_stall", "cuda_illegal_access", "unknown")
    first = next((found for word in order for found in causes if found[0] == word), None)
    if first is None:
        return None
    return Diagnosis(
        verdict="node_fault",
        cause=first[0],
        certainty=Certainty.SUPPORTED,
        sentence=f"the kernel wrote: {first[1][:200]}",
        reasons_for=tuple(line for _, line in causes[:8]),
    )


def _counted(text: str) -> Diagnosis | None:
    """NCCL's own counts of launched operations: a rank that launched fewer is the one the others wait for."""
    if not _RAS.search(text):
        return None
    if (behind := _behind(text)) is not None:
        return behind
    counts = _counts(text)
    if sum(len(its) for its in counts.values()) < _FEWEST_RANKS:
        return None
    frozen = _FROZEN.search(text) is not None
    apart = [its for its in counts.values() if len({tuple(sorted(each.items())) for each in its.values()}) > 1]
    if apart:
        return _spread(apart[0], frozen, numbered_alike=len(counts) == 1)
    spinning = _spins(_gpus(text))
    if not (frozen or spinning):
        return Diagnosis(
            verdict="undetermined",
            cause="unknown",
            sentence="all ranks have launched as many operations; whether they still count is not shown",
        )
    return Diagnosis(
        verdict="hang",
        cause="gpu_kernel_livelock" if spinning else "collective_started_everywhere",
        certainty=Certainty.SUPPORTED if frozen and spinning else Certainty.SUSPECTED,
        sentence="all ranks have launched as many operations, and no more: no rank is missing, a kernel on the GPUs does not end",
        reasons_for=tuple(
            filter(
                None,
                ("equal counts on all ranks", "the counts stand still" if frozen else "", "GPUs are busy at low power" if spinning else ""),
            )
        ),
        suggested=("Take native stacks of the ranks and look which kernel was launched last (CUDA_LAUNCH_BLOCKING=1, cuda-gdb)",),
    )


_FEWEST_RANKS = 2


def _counts(text: str) -> dict[str, dict[int, dict[str, int]]]:
    """Operations by communicator and by its ranks; one that has no number is the only one."""
    counts: dict[str, dict[int, dict[str, int]]] = {}
    communicator = ""
    for line in text.splitlines():
        if found := _RAS_COMMUNICATOR.match(line):
            communicator = found[1]
        for rank, words in _RAS_COUNT.findall(line):
            if pairs := _COUNT.findall(words):
                counts.setdefault(communicator, {})[int(rank)] = {name.lower(): int(number) for name, number in pairs}
    return counts


def _spread(counts: dict[int, dict[str, int]], frozen: bool, *, numbered_alike: bool) -> Diagnosis:
    """Of several communicators each counts its own ranks from 0: then a number is no rank of the job."""
    totals = {rank: sum(each.values()) for rank, each in counts.items()}
    least = min(totals.values())
    late = tuple(rank for rank, total in totals.items() if total == least)
    named = late if numbered_alike and len(late) * 2 < len(totals) else None
    return _late(named, f"ranks have launched between {least} and {max(totals.values())} operations", frozen)


def _behind(text: str) -> Diagnosis | None:
    """RAS prints the ranks of each smaller group below its count."""
    groups: list[tuple[int, int, list[int]]] = []
    for line in text.splitlines():
        if found := _LAGGING.search(line):
            groups.append((int(found[1]), int(found[2]), []))
        elif groups and (row := _RAS_RANK.match(line)):
            groups[-1][2].append(int(row[1]))
    if len(groups) < 2:
        return None
    least = min(groups, key=lambda group: group[1])
    named = tuple(least[2])
    why = f"some ranks have launched operation {least[1]} and no more, others are further"
    return _late(named if named and least[0] == len(named) else None, why, _FROZEN.search(text) is not None)


def _late(ranks: tuple[int, ...] | None, why: str, frozen: bool) -> Diagnosis:
    """A spread at one moment is normal; whoever is fewer need not be behind: only the lower count that does not move is missing."""
    if not frozen:
        return Diagnosis(
            verdict="undetermined",
            cause="unknown",
            sentence=f"{why}; at one moment that is normal",
            suggested=("Ask NCCL again a minute later: only counts that stand still show who is missing",),
        )
    return Diagnosis(
        verdict="hang",
        cause="rank_missing_collective",
        culprit_ranks=ranks,
        sentence=f"{why}: those that launched fewer are missing from the collective that the others wait in",
        reasons_for=(why,),
        suggested=("Take the stacks of the ranks that launched fewer: they show what keeps them",),
    )


_LONGEST_ROW = 1000


def _gpus(text: str) -> list[Gpu]:
    columns: list[str] | None = None
    found: list[Gpu] = []
    for line in text.splitlines():
        if len(line) > _LONGEST_ROW:
            continue
        if asked := _QUERY.search(line):
            columns = asked[1].lower().split(",")
        elif _CSV_HEADER.match(line) and "," in line:
            columns = [cell.strip().lower() for cell in line.split(",")]
        elif columns is not None and line.count(",") == len(columns) - 1:
            found += _csv_row(columns, line)
        elif row := _TABLE_ROW.search(line):
            found.append(Gpu(busy_percent=float(row[3]), power_w=float(row[1]), limit_w=float(row[2])))
        elif named := _NAMED.search(line):
            found.append(Gpu(busy_percent=float(named[2]), power_w=float(named[3])))
        elif ("# gpu" in text and "pwr" in text) and (row := _DMON.match(line)):
            found.append(Gpu(busy_percent=float(row[4]), power_w=float(row[2])))
    return found


def _csv_row(columns: list[str], line: str) -> list[Gpu]:
    row = dict(zip(columns, (cell.strip() for cell in line.split(",")), strict=True))
    busy = next((_number(cell) for name, cell in row.items() if name.startswith(("utilization.gpu", "gpu_util", "util"))), None)
    power = next((_number(cell) for name, cell in row.items() if name.startswith("power.draw")), None)
    limit = next((_number(cell) for name, cell in row.items() if name.startswith(("power.limit", "enforced.power"))), None)
    return [] if busy is None else [Gpu(busy_percent=busy, power_w=power, limit_w=limit)]


def _number(cell: str) -> float | None:
    found = re.match(r"\d+(?:\.\d+)?", cell)
    return float(found[0]) if found else None


def _is_spin(gpu: Gpu) -> bool:
    if gpu.busy_percent < _BUSY_PERCENT or gpu.power_w is None:
        return False
    return gpu.power_w < (_SPIN_SHARE * gpu.limit_w if gpu.limit_w else _SPIN_WATTS)


def _spins(gpus: list[Gpu]) -> bool:
    return bool(gpus) and all(_is_spin(gpu) for gpu in gpus)


def _worked(text: str) -> Diagnosis | None:
    gpus = _gpus(text)
    if len(gpus) < 1:
        return None
    spinning = [gpu for gpu in gpus if _is_spin(gpu)]
    idle = [gpu for gpu in gpus if gpu.busy_percent < _IDLE_PERCENT]
    if len(gpus) > 1 and spinning and len(spinning) < len(gpus):
        return Diagnosis(
            verdict="hang" if _FROZEN.search(text) else "undetermined",
            cause="unknown",
            sentence=f"{len(spinning)} of {len(gpus)} GPUs are busy at low power, as in a wait for peers; {len(idle)} are idle",
            reasons_against=("a GPU's index does not tell its rank",),
            suggested=("Take the stacks of the processes on the GPUs that do not spin: the others wait for one of them",),
        )
    if spinning:
        return Diagnosis(
            verdict="hang" if _FROZEN.search(text) else "undetermined",
            cause="collective_started_everywhere" if _FROZEN.search(text) else "unknown",
            sentence=f"all {len(gpus)} GPUs are busy at low power: they spin in a kernel, of NCCL or another; NCCL's counts would tell",
            suggested=("Ask NCCL for its counts (ncclras -v), and take the stacks of all ranks",),
        )
    working = [gpu for gpu in gpus if gpu.busy_percent >= _BUSY_PERCENT and gpu.power_w is not None]
    if len(working) == len(gpus):
        return Diagnosis(verdict="healthy", cause="none", sentence=f"all {len(gpus)} GPUs are busy at working power")
    return Diagnosis(
        verdict="undetermined", cause="unknown", sentence=f"{len(idle)} of {len(gpus)} GPUs are idle; why is not shown by their counters"
    )
