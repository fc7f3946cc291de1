"""One look at a job that runs, for `watch --once`: some seconds of watching, and what the analysis says of them."""

from pathlib import Path

from rankpatrol.agent.attachment import registration_of
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.roster import Attempt
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.analysis.waits import classify
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.discover.records import FoundJob
from rankpatrol.evidence.findings import speakable
from rankpatrol.judge.judge import stirred
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.system.clock import Clock

_ROUNDS, _ROUND_S = 4, 1.0


class Glimpse(Record, frozen=True, kw_only=True):
    """What a short watch saw of one job: its diagnosis, and what each rank is at."""

    job: str
    world_size: int
    seconds: float
    diagnosis: Diagnosis
    at: dict[int, str]


def glimpse(job: FoundJob, clock: Clock) -> Glimpse:
    """Watch a job for some seconds. A short silence proves nothing: the answer is never more than supported, and nobody is judged."""
    eyes = Eyes(job.name, Path("/nonexistent"), clock)
    eyes.begin(Attempt(number=0, places=places_of(job), exits={}, gone=frozenset()))
    began_s = clock.mono_s()
    first = eyes.look()
    moved: set[int] = set()
    before = eyes.light()
    for _ in range(_ROUNDS):
        clock.sleep(_ROUND_S)
        after = eyes.light()
        moved |= moved_ranks(before, after)
        before = after
    eyes.look()
    ranks = {activity.rank for activity in before}
    if any(activity.ended for activity in before):
        found = Diagnosis(verdict="undetermined", cause="unknown", sentence="ranks ended while we looked")
    else:
        found = healthy(tuple(sorted(ranks)), job.world_size) if ranks and ranks <= moved else diagnose((first, eyes.looks[-1]))
    at = {sample.rank: classify(sample).what for sample in eyes.looks[-1].ranks}
    return Glimpse(job=job.name, world_size=job.world_size, seconds=round(clock.mono_s() - began_s, 1), diagnosis=speakable(found), at=at)


def moved_ranks(before: tuple[RankActivity, ...], after: tuple[RankActivity, ...]) -> set[int]:
    """Those that stirred between two rounds."""
    earlier = {activity.rank: activity for activity in before}
    return {each.rank for each in after if not each.ended and each.rank in earlier and stirred(earlier[each.rank], each)}


def healthy(ranks: tuple[int, ...], world_size: int) -> Diagnosis:
    """All of these ranks move."""
    part = "" if len(ranks) == world_size else f" (of {world_size}; the others are on other nodes)"
    names = say_ranks(ranks)
    return Diagnosis(verdict="healthy", cause="none", certainty=Certainty.SUPPORTED, sentence=f"{names}{part} move")


def places_of(job: FoundJob) -> tuple[RankPlace, ...]:
    """Its ranks as shims would have registered them."""
    return tuple(registration_of(rank, job.world_size) for rank in job.ranks)
