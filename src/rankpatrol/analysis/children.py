"""The CPU that the processes below a rank used. What they run need not be Python: neither stacks nor memory tell their work from a loop."""

from rankpatrol.analysis.work import Looks
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import ProcessSample, RankSample

_TICKS_PER_S = 100
# Two looks may be a second apart, and a monitor that runs a command now and then would fill one of them: at least this long is measured.
_WINDOW_S = 4.5
# A quarter of one core. Helpers that poll (a metrics service, a monitor that runs nvidia-smi every few seconds) use a few per cent; a
# command that a rank waits for uses all of a core, or half of one where more processes want to run than there are cores.
_LEAST_SHARE = 0.25
_FEWEST_TICKS = 10


class ChildrenCpu(Record, frozen=True, kw_only=True):
    """CPU ticks since a look some seconds ago: by pid those of processes that were there already, and of all that came or went since."""

    window_s: float
    steady: dict[int, int]
    passing_ticks: int

    def is_much(self, ticks: int) -> bool:
        """True for at least a quarter of one core: no helper that only polls."""
        return ticks >= max(_FEWEST_TICKS, _LEAST_SHARE * _TICKS_PER_S * self.window_s)

    def come_and_go(self) -> tuple[str, ...]:
        """What was got done by processes that began or ended: unlike CPU alone, that one of them ends is progress."""
        return (f"runs one process after another ({self.passing_ticks * 10} ms of CPU)",) if self.is_much(self.passing_ticks) else ()


def children_cpu(looks: Looks, rank: int) -> ChildrenCpu | None:
    """What all descendants of a rank used, those included that ended unseen; None where there is nothing to compare."""
    seen = [(snapshot.at_mono_s, sample) for snapshot, sample in looks.samples(rank)]
    if len(seen) < 2:
        return None
    now_s, now = seen[-1]
    began_s, then = next((each for each in reversed(seen[:-1]) if now_s - each[0] >= _WINDOW_S), seen[0])
    before, after = _family(then), _family(now)
    steady = {
        pid: each.cpu_ticks - before[pid].cpu_ticks
        for pid, each in after.items()
        if pid != now.pid and pid in before and before[pid].id == each.id
    }
    began = sum(each.cpu_ticks for pid, each in after.items() if pid not in steady and pid != now.pid)
    return ChildrenCpu(window_s=now_s - began_s, steady=steady, passing_ticks=began + _ended_ticks(before, after))


def _ended_ticks(before: dict[int, ProcessSample], after: dict[int, ProcessSample]) -> int:
    """What parents were told of children that they waited for, less what those had used by the look before."""
    reaped = sum(each.children_ticks - before[pid].children_ticks for pid, each in after.items() if _is_in(before, each))
    known = sum(each.cpu_ticks + each.children_ticks for each in before.values() if not _is_in(after, each))
    return max(0, reaped - known)


def _is_in(family: dict[int, ProcessSample], process: ProcessSample) -> bool:
    return process.id.pid in family and family[process.id.pid].id == process.id


def _family(sample: RankSample) -> dict[int, ProcessSample]:
    own = (sample.process,) if isinstance(sample.process, ProcessSample) else ()
    return {each.id.pid: each for each in (*own, *sample.descendants)}
