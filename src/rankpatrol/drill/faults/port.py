"""What every fault promises."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

from rankpatrol.core.records import Record
from rankpatrol.drill.events import Event
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth
from rankpatrol.judge.tape import TapeItem


class Expectation(StrEnum):
    """How a run must go for the patrol to pass."""

    RECOVERS = "the rank is named, the evidence sealed, the attempt ended, and the training finished"
    NAMED = "watched from outside, the rank is named, judged and its evidence sealed, and nobody is ended"
    SUSPECTS = "watched from outside, the rank is suspected in an alert, and nothing more is said, let alone done"
    CRASHES = "the rank that failed first is named with proof, the evidence sealed, and the next attempt finished"
    LOOPS = "the third failure of one kind in a row stops the job, and says so"
    TIMES_OUT = "a group's own time-out ends the attempt: the evidence is sealed before it, and its victims are not blamed"
    LAUNCHER_LOST = "every process of the job is gone within 5 s of its launcher, and nobody else's is touched"
    NOT_AGAIN = "the job is over but does not end: it is ended, its evidence sealed before, and not started again"
    SILENT = "a long silence is no hang: nothing is done, alerts close by themselves, and the training finishes"
    ENDS_WELL = "nothing is called a hang, nothing is done, and the training finishes"
    RELEASES = "what a dead rank left behind is proved and released, a stranger hears nothing, and the training finishes"
    SLOWED_BY_ONE = "the rank that the others wait for is named in a verdict that nothing follows, and the training finishes"
    SLOWED = "the job is called slow for the right reason, nobody is named, nothing follows, and the training finishes"
    ALERTED = "an alert says what is odd of a training that goes on, nothing follows, and the training finishes"
    WOULD_END = "in virtual time the rank is named, judged, and its attempt would be ended, and not before"
    KEEPS = "who found the disk full is named with proof, the job is not started again, and the last good checkpoint is known as such"
    STOPS = "the user's Ctrl-C ends all, and is not called a hang"


class Moment(Record, frozen=True):
    """How far the run is: the last step that the training has told, and the process above everything it started."""

    step: int
    keeper_pid: int


class Fault(Protocol):
    """One scenario, made for one run. The training itself is never edited: all comes from outside.

    `steps`: how long the training is. `names_nobody`: no rank is to blame, the code is. `suspect_s` and `ended_s`: the bars for naming the
    rank and for ending the attempt. `patience`: the patrol's, where the row fixes it. `in_log_tail`: what the sealed log of the struck rank
    must hold. `attached`: the training is always watched from outside; `suspected_only`: from there no more can be said than whom to
    suspect. What a fault does not say for itself is that it does nothing then.
    """

    id: str
    verdict: str
    causes: tuple[str, ...]
    expects: Expectation
    steps: int = 120
    names_nobody: bool = False
    suspect_s: float = 15.0
    ended_s: float = 40.0
    patience: str | None = None
    in_log_tail: str = ""
    attached: bool = False
    suspected_only: bool = False

    def watch_words(self, pid: int) -> tuple[str, ...]:
        """What a watch from outside is told to watch, where `pid` is the training's launcher."""
        return ("--pid", str(pid))

    def tape(self, scene: Scene) -> tuple[Truth, Iterator[TapeItem]] | None:  # ruff: ignore[ARG002] - the port's words
        """A recording that is played in the place of a real run, and its truth; None where real ranks are needed."""
        return None

    def prepare(self, scene: Scene) -> dict[str, str]:  # ruff: ignore[ARG002] - the port's words
        """Before the start: arrange the scene, and return the variables to add to the run's environment."""
        return {}

    def strike(self, scene: Scene, moment: Moment) -> None:
        """Called several times a second: does, or notes, what its moment has come for. Idempotent, never blocks."""

    def by_our_clock(self, event: Event) -> Event:
        """What the patrol told, by the drill's own wall clock."""
        return event

    def resume_step(self, scene: Scene) -> int:
        """From which step the next attempt must go on."""
        return scene.newest_checkpoint_step()

    def heal(self, scene: Scene) -> None:
        """Called when the attempt is acted upon or over: what the next attempt meets is in order again. Idempotent."""

    def clear(self) -> None:
        """After the run: give back what is still held. Idempotent."""
