"""What is known when a run is over, what is demanded of it, and what it is worth."""

from collections.abc import Mapping

from rankpatrol.core.records import Missing, Record
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.truth import Truth


class Bars(Record, frozen=True, kw_only=True):
    """What is demanded, counted from the onset. A silence no longer than `silence_s` proves nothing."""

    suspect_s: float = 15.0
    ended_s: float = 40.0
    silence_s: float = 20.0


class Outcome(Record, frozen=True, kw_only=True):
    """All that is known when a run is over. Bundle paths lead to whether `rankpatrol bundle verify` accepted them.

    `log_tails`: the struck rank's log in each bundle. `in_log_tail`: what one of them must hold. `virtual`: a recording was played, so
    that nothing could be sealed.
    """

    fault: str
    expects: Expectation
    verdict: str
    causes: tuple[str, ...]
    run: int
    seed: str
    truth: Truth | Missing
    onset_unix_s: float | Missing
    ended_unix_s: float
    resume_step: int | None
    events: tuple[Event, ...]
    exit_code: int | Missing
    finished: bool
    bundles: Mapping[str, bool]
    left: tuple[str, ...]
    seconds: float
    folder: str
    names_nobody: bool = False
    in_log_tail: str = ""
    log_tails: Mapping[str, str] = {}
    virtual: bool = False

    @property
    def told(self) -> Truth:
        """The truth, or one that says nothing."""
        return self.truth if isinstance(self.truth, Truth) else Truth()


class Score(Record, frozen=True, kw_only=True):
    """One run's marks, in seconds from the onset. It passed when there is no complaint.

    `onset_off_s`: how much later the verdict puts the onset than the truth does. `alerts`: how many were raised in all;
    `false_alerts`: those whose incident closed by itself. `virtual`: its seconds are nobody's. `bar_s`: the row's bar for naming the
    suspect, None where there is nobody to name.
    """

    fault: str
    run: int
    seed: str
    folder: str
    expects: Expectation | None = None
    bar_s: float | None = None
    rank: int | None = None
    step: int | None = None
    suspect_s: float | None = None
    verdict_s: float | None = None
    sealed_s: float | None = None
    ended_s: float | None = None
    onset_off_s: float | None = None
    silent_s: float | None = None
    alerts: int = 0
    false_alerts: int = 0
    virtual: bool = False
    caught: bool = False
    named_rightly: bool = False
    process_named: bool = False
    resumed_step: int | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    complaints: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.complaints
