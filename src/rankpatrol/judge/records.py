"""What the judge is told, what it remembers, and what it says."""

import msgspec

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Record


class Policy(Record, frozen=True, kw_only=True):
    """How long is too long: floors and ceilings; between them the job teaches us (JudgeState.learned_s)."""

    patience_s: float = 180.0
    # A step of the test trainings takes 0.2 s and a slow one seconds; a rank that does not even stir for this long is looked at.
    still_budget_s: float = 5.0
    # Imports and the rendezvous of many ranks: 32 gloo ranks take 31 s on two cores.
    starting_budget_s: float = 60.0
    # A job whose steps are counted is looked at after this many of its usual steps, never before the floor and never after the budget.
    still_steps: float = 8.0
    still_floor_s: float = 1.5
    # Between two looks while something is odd, before a look that may confirm the one before, and once the suspect is named.
    look_every_s: float = 2.0
    confirm_after_s: float = 1.0
    watch_every_s: float = 5.0
    # A suspect is named after this many looks that agree.
    agreeing_looks: int = 2
    # Whoever works while the others wait is worth an alert only when it takes long: a checkpoint or an evaluation takes less.
    benign_alert_s: float = 30.0
    # A silence that ended by itself may come again, and last half as long again; no lesson goes beyond the ceiling.
    learned_factor: float = 1.5
    learned_ceiling_s: float = 900.0
    # Storage takes its time over checkpoints: quiet writes get twice the patience.
    checkpoint_patience_factor: float = 2.0
    # The evidence is sealed this long before a process group's own time-out fires, or in the last third of a short one; a look comes
    # every 5 s and a seal takes up to 3 s, so never later than the floor.
    timeout_margin_s: float = 30.0
    timeout_margin_floor_s: float = 8.0


class RankActivity(Record, frozen=True, kw_only=True):
    """The light facts of one rank, once a second. `joined`: it is a member of a process group, so no longer starting.

    `failed`: it ended in any way but with exit code 0. `switches` are the voluntary ones: on a busy node even a short wake is preempted
    several times. `marked_steps`, `phase` and `group_timeout_s` (its shortest) are its probe's words, or None.

    `seen_at_s`: when it was seen, on the judge's clock, where that is less often than the judge thinks; None: in the round that tells it.
    """

    rank: int
    ended: bool
    failed: bool = False
    joined: bool
    traced: bool
    stopped: bool
    main_thread_ticks: int
    switches: int
    step: int | None
    marked_steps: int | None = None
    phase: str | None = None
    group_timeout_s: float | None = None
    seen_at_s: float | None = None


class AttemptBegan(Record, frozen=True, tag="attempt_began", kw_only=True):
    """A new attempt: everything known of the last one is forgotten."""

    at_s: float
    attempt: int
    world_size: int


class Observed(Record, frozen=True, tag="observed", kw_only=True):
    """One light round over all ranks."""

    at_s: float
    ranks: tuple[RankActivity, ...]


class Looked(Record, frozen=True, tag="looked", kw_only=True):
    """One close round: what the analysis said of the stacks."""

    at_s: float
    diagnosis: Diagnosis


class SetAside(Record, frozen=True, tag="set_aside", kw_only=True):
    """Nothing will be done about what was judged, since it is not so any more: look at it anew."""

    at_s: float


Event = AttemptBegan | Observed | Looked | SetAside


class LookCloser(Record, frozen=True, tag="look_closer", kw_only=True):
    """A signal: take stacks now."""

    why: str


class Suspected(Record, frozen=True, tag="suspected", kw_only=True):
    """A suspect is named by looks that agree. `onset_s` is the suspect's last sign of progress, on the judge's clock.

    `quiet`: this phase had its alert in this attempt already, so people are not told again unless it comes to a verdict.
    """

    onset_s: float
    diagnosis: Diagnosis
    phase: str
    quiet: bool


class TimeoutNears(Record, frozen=True, tag="timeout_nears", kw_only=True):
    """A process group's own time-out will end the job soon, before the judge has made up its mind."""

    fires_in_s: float
    timeout_s: float


class Judged(Record, frozen=True, tag="judged", kw_only=True):
    """A verdict: nothing of whoever is awaited worked for the policy's patience, or it is proved that it cannot end."""

    onset_s: float
    diagnosis: Diagnosis


class Resumed(Record, frozen=True, tag="resumed", kw_only=True):
    """Every rank stirs again: whatever was suspected has ended by itself."""

    at_s: float


Finding = LookCloser | Suspected | TimeoutNears | Judged | Resumed


class Seen(Record, frozen=True, kw_only=True):
    """The last activity of a rank, when it was seen, and when it last stirred."""

    activity: RankActivity
    stirred_at_s: float
    seen_at_s: float = 0.0

    @property
    def still_s(self) -> float:
        """How long it is known to stand: nobody knows of the time after it was seen."""
        return max(0.0, self.seen_at_s - self.stirred_at_s)


class JudgeState(Record, frozen=True, kw_only=True):
    """All the judge remembers of the attempt."""

    world_size: int = 0
    seen: dict[int, Seen] = msgspec.field(default_factory=dict)
    step_at_s: float = 0.0
    step: int | None = None
    # The first steps of this attempt that were counted, and the last, with their times: what a usual step takes.
    first_marked: tuple[float, int] | None = None
    last_marked: tuple[float, int] | None = None
    looked_at_s: float | None = None
    silent_since_s: float | None = None
    agreeing: tuple[Diagnosis, ...] = ()
    worked_at_s: float | None = None
    suspected: bool = False
    judged: bool = False
    timeout_told: bool = False
    # What this job has taught: the longest silence of each phase that ended by itself. Kept over attempts.
    learned_s: dict[str, float] = msgspec.field(default_factory=dict)
    alerted: frozenset[str] = frozenset()
    stall_phase: str | None = None
