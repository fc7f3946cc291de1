"""The other nodes of a job, as its agent needs them. A job on one node has none."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rankpatrol.agent.nodes.wire import Ended, Light, Part, StartNext
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import FlightRecording, RankSample
from rankpatrol.core.starts import NextStart
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import OrderedEnd, ResumePoint


class NodeLine(Record, frozen=True, kw_only=True):
    """One other node, for people: when it was heard last and how often it tells, how far its clock is from ours, what is wrong with it."""

    node: str
    heard_ago_s: float | None
    every_s: float = 1.0
    ranks: tuple[int, ...] = ()
    clock_ahead_s: float | None = None
    problem: str = ""


class Others(Protocol):
    """Everything here returns in bounded time; a node that does not answer is Missing or left out, never waited for."""

    def parts(self, group: str | None) -> tuple[Part, ...]:
        """The other nodes' parts of the attempt of this group, with the ends of ranks in our time."""
        ...

    def light(self, group: str | None) -> Light:
        """What they told last of their ranks, in our time; also of those that have fallen silent."""
        ...

    def look(self, group: str | None, name: str, *, full: bool) -> Callable[[], "Sight"]:
        """Have all look closely, at once; the call that comes back waits for their answers."""
        ...

    def recordings(
        self, group: str | None, ranks: tuple[int, ...] | None = None, *, lines: bool = False
    ) -> dict[int, FlightRecording | Missing]:
        """Flight recordings of their ranks, or of those of `ranks` that are theirs; with lines of code where asked."""
        ...

    def native(self, group: str | None, rank: int) -> str | Missing:
        """One native stack of a rank of theirs."""
        ...

    def hosts(self) -> dict[str, Any]:
        """The machines' facts, by node."""
        ...

    def start_next(self, start: NextStart, group: str | None, after: str | None) -> dict[str, str]:
        """Tell them how an attempt starts; by node why one could not be told."""
        ...

    def greet_with(self, *, newest_good: ResumePoint | None = None, start: StartNext | None = None) -> None:
        """Repeat this to them every few seconds; what is None stays as it was."""
        ...

    def release(self, group: str | None) -> None:
        """The evidence is taken: failed ranks' shims may pass their exits on."""
        ...

    def end_attempt(self, group: str | None, grace_s: float) -> Ended:
        """Have their ranks of this attempt ended through their shims."""
        ...

    def end_job(self) -> str:
        """Have their launchers told to end; why not where that failed."""
        ...

    def ordered(self, group: str | None) -> OrderedEnd | None:
        """A user or a scheduler told one of those with ranks of this attempt to end."""
        ...

    def paused(self, group: str | None) -> Pause | None:
        """Somebody wants nobody to act on one of those with ranks of this attempt."""
        ...

    def silent(self, group: str | None) -> dict[str, float]:
        """By node (as its ranks call it): for how many seconds one that holds ranks of this attempt has not been heard."""
        ...

    def over(self) -> bool:
        """True when no launcher of theirs is known to run any more."""
        ...

    def lines(self) -> tuple[NodeLine, ...]:
        """All of them, for people."""
        ...

    def cut_off(self) -> bool:
        """True where this node's ranks have to be judged without those of the others."""
        ...


class Sight(Record, frozen=True, kw_only=True):
    """What a close look at the other nodes showed, in our time."""

    ranks: tuple[RankSample, ...] = ()
    kills: dict[int, str] = msgspec.field(default_factory=dict)


class Alone:
    """There are none."""

    def parts(self, group: str | None) -> tuple[Part, ...]:
        return ()

    def light(self, group: str | None) -> Light:
        return Light()

    def look(self, group: str | None, name: str, *, full: bool) -> Callable[[], Sight]:
        return Sight

    def recordings(
        self, group: str | None, ranks: tuple[int, ...] | None = None, *, lines: bool = False
    ) -> dict[int, FlightRecording | Missing]:
        return {}

    def native(self, group: str | None, rank: int) -> str | Missing:
        return Missing(f"rank {rank} is not known here")

    def hosts(self) -> dict[str, Any]:
        return {}

    def start_next(self, start: NextStart, group: str | None, after: str | None) -> dict[str, str]:
        return {}

    def greet_with(self, *, newest_good: ResumePoint | None = None, start: StartNext | None = None) -> None:
        return None

    def release(self, group: str | None) -> None:
        return None

    def end_attempt(self, group: str | None, grace_s: float) -> Ended:
        return Ended()

    def end_job(self) -> str:
        return ""

    def ordered(self, group: str | None) -> OrderedEnd | None:
        return None

    def paused(self, group: str | None) -> Pause | None:
        return None

    def silent(self, group: str | None) -> dict[str, float]:
        return {}

    def over(self) -> bool:
        return True

    def lines(self) -> tuple[NodeLine, ...]:
        return ()

    def cut_off(self) -> bool:
        return False


class CutOff(Alone):
    """There are some, and they cannot be heard."""

    def cut_off(self) -> bool:
        return True
