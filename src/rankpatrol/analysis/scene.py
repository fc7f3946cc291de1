"""One moment of a job, put in order: who waits for whom, and the looks that led to it."""

from functools import cached_property

from rankpatrol.analysis.children import ChildrenCpu, children_cpu
from rankpatrol.analysis.frames import is_inside
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.waits import Wait, classify, main_thread, pending_of, with_recording
from rankpatrol.analysis.work import Effort, Looks, effort
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import ProcessSample, RankSample, Snapshot


class Cause(Record, frozen=True, kw_only=True):
    """What one family of causes says of one awaited rank. `lines` counts the independent lines of evidence behind it."""

    verdict: str = "hang"
    cause: str
    rank: int
    phrase: str
    lines: int
    reasons_for: tuple[str, ...] = ()
    reasons_against: tuple[str, ...] = ()
    suggested: tuple[str, ...] = ()
    not_to_be_ended: str | None = None
    process: ProcessSample | None = None
    file: str | None = None
    file_offset_bytes: int | None = None
    quiet_since_mono_s: float | None = None


class Scene:
    """The latest snapshot with each rank's wait, and the earlier looks to compare it with."""

    def __init__(self, history: tuple[Snapshot, ...]) -> None:
        self.history = history
        self.now = history[-1]

    @cached_property
    def samples(self) -> dict[int, RankSample]:
        """This moment's sample of each rank."""
        return {sample.rank: sample for sample in self.now.ranks}

    @cached_property
    def _by_rank(self) -> Looks:
        return Looks(self.history)

    @cached_property
    def waits(self) -> dict[int, Wait]:
        """What each rank is at."""
        waits = {rank: classify(sample) for rank, sample in self.samples.items()}
        if all(pending_of(sample.recording) is None for sample in self.samples.values()):
            return waits
        return {rank: with_recording(wait, self.samples[rank].recording) for rank, wait in waits.items()}

    @cached_property
    def victims(self) -> tuple[int, ...]:
        """Ranks that wait for others."""
        return tuple(rank for rank, wait in self.waits.items() if wait.for_peers())

    @cached_property
    def awaited(self) -> tuple[int, ...]:
        """Ranks that wait for no one of the others: the ends of every chain of waits."""
        others = {*self.victims, *self.unclear}
        return tuple(rank for rank in self.waits if rank not in others)

    @cached_property
    def unclear(self) -> tuple[int, ...]:
        """Ranks of which too little is known to place them: never accused."""
        return tuple(rank for rank, wait in self.waits.items() if wait.unclear())

    def process_of(self, rank: int) -> ProcessSample | None:
        """The rank's own process."""
        process = self.samples[rank].process
        return None if isinstance(process, Missing) else process

    def is_inside(self, rank: int, kind: WaitKind) -> bool:
        """True where the rank's main thread is anywhere within something of this kind, in user code that torch called, say."""
        thread = main_thread(self.samples[rank].stack)
        return thread is not None and is_inside(thread, kind)

    def effort_of(self, rank: int, pid: int | None = None) -> Effort:
        """What one process of a rank got done; the rank's own where no pid is given."""
        return effort(self._by_rank, rank, self.samples[rank].pid if pid is None else pid)

    def family_effort(self, rank: int) -> tuple[str, ...]:
        """What the rank and its descendants got done, each with its name."""
        own = [f"rank {rank} {each}" for each in self.effort_of(rank).done]
        for child in self.samples[rank].descendants:
            own += [f"its child {child.id.pid} ({child.name}) {each}" for each in self.effort_of(rank, child.id.pid).done]
        cpu = self.children_cpu(rank)
        return (*own, *(f"rank {rank} {each}" for each in cpu.come_and_go())) if cpu is not None else tuple(own)

    def children_cpu(self, rank: int) -> ChildrenCpu | None:
        """What all processes below a rank used of the CPU lately."""
        return children_cpu(self._by_rank, rank)


def say_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as a sentence names them: `rank 3`, `ranks 0-2`, `ranks 0, 2 and 5-7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    joined = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {joined}"
