"""F23's marks: the orphans are gone by the injector's own eyes, told by the patrol, and nobody else was named or touched."""

import msgspec
import pytest

from rankpatrol.drill.events import Event
from rankpatrol.drill.faults import make
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.score import Bars, Outcome, score
from rankpatrol.drill.truth import Truth

AT = 1795955000.0
TRUTH = Truth(rank=2, step=17, at_unix_s=AT, until_unix_s=AT + 4, pids=(4711, 4712))


def orphan(pid: int, kind: str = "orphan", *, done: bool | None = None) -> Event:
    return Event(at_unix_s=AT + 3, kind=kind, pid=pid, done=done)


GOOD = (orphan(4711), orphan(4711, "orphan_released", done=True), orphan(4712), orphan(4712, "orphan_released", done=True))


def complaints(events: tuple[Event, ...] = GOOD, truth: Truth = TRUTH, **changes: object) -> tuple[str, ...]:
    plain = Outcome(
        fault="F23",
        expects=Expectation.RELEASES,
        verdict="hang",
        causes=(),
        run=0,
        seed="s",
        truth=truth,
        onset_unix_s=AT,
        ended_unix_s=AT + 60,
        resume_step=10,
        events=events,
        exit_code=0,
        finished=True,
        bundles={},
        left=(),
        seconds=60.0,
        folder="/somewhere",
    )
    return score(msgspec.structs.replace(plain, **changes), Bars()).complaints


def test_orphans_that_are_told_and_gone_pass() -> None:
    assert complaints() == ()


def test_the_ranks_healthy_loader_may_go_by_itself() -> None:
    assert complaints(GOOD[:2]) == ()


@pytest.mark.parametrize(
    ("events", "truth", "words"),
    [
        ((), TRUTH, "process 4711 was orphaned, but not told as released"),
        ((orphan(4711), orphan(4711, "orphan_released", done=False)), TRUTH, "not told as released"),
        ((*GOOD, orphan(9)), TRUTH, "process 9 is called an orphan, and is none"),
        (GOOD, msgspec.structs.replace(TRUTH, until_unix_s=None), "never: the orphans were gone"),
        (GOOD, msgspec.structs.replace(TRUTH, until_unix_s=AT + 43), "after 43.0 s, the bar is 20 s"),
        (GOOD, msgspec.structs.replace(TRUTH, harmed=("the stranger's process",)), "yet was touched"),
        ((*GOOD, Event(at_unix_s=AT, kind="verdict", verdict="hang")), TRUTH, "nothing hung, yet"),
    ],
)
def test_each_way_to_fail_is_a_sentence(events, truth: Truth, words: str) -> None:
    assert any(words in complaint for complaint in complaints(events, truth))


def test_the_drill_knows_it() -> None:
    assert make("f23").expects is Expectation.RELEASES
