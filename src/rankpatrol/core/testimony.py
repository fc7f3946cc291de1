"""What a log states, one fact a record: who said it, where it stands, when, and what it is."""

from enum import StrEnum

import msgspec

from rankpatrol.core.records import Record


class Kind(StrEnum):
    """What sort of statement a line makes. Collateral kinds are never a first cause."""

    TIMED_OUT = "timed_out"  # a collective of this rank ran into its time-out
    STATUS = "status"  # how far a rank is in a group
    WATCHDOG_STUCK = "watchdog_stuck"  # c10d's watchdog thread itself does not move
    GOING_DOWN = "going_down"  # c10d or the C++ runtime aborts the process
    MISMATCH = "mismatch"  # two ranks called different collectives
    BARRIER_ABSENT = "barrier_absent"  # a monitored barrier names who did not come
    NAMED_LAGGING = "named_lagging"  # the desync report of c10d names ranks
    RAISED = "raised"  # a Python exception
    SIGNALLED = "signalled"  # a process died of a signal
    EXITED = "exited"  # a process left with an exit code
    DIED = "died"  # a process ended, how is not said
    KILLED_BY_KERNEL = "killed_by_kernel"  # the OOM killer
    LOADER_DIED = "loader_died"  # a loader process was killed or vanished
    SYMPTOM = "symptom"  # what a device, a limit or a file system says; `word` names it
    COLLATERAL = "collateral"  # a peer, connection or store is gone; `word` names how
    STOPPED_BY_LAUNCHER = "stopped_by_launcher"  # ended by its launcher because another one failed
    SCHEDULER = "scheduler"  # the scheduler's word; `word` names it
    PROGRESS = "progress"  # a counter
    PULSE = "pulse"  # a sign of life that proves no progress
    PHASE = "phase"  # what a rank is doing; `word` names it
    FINISHED = "finished"  # the training says that it is done
    DATA_ENDED = "data_ended"  # a rank says that its data, or its epoch, is over
    TIMES = "times"  # how long the parts of a step took
    WORLD = "world"  # how many ranks there are
    PLACED = "placed"  # which process, pod or node is which rank's; `word` names what
    MEMBERS = "members"  # the global ranks of a process group
    NOW = "now"  # the observer's clock
    SILENCE = "silence"  # the observer says for how long nothing came
    ALIVE = "alive"  # the observer says that processes live
    GPU = "gpu"  # the observer's reading of a GPU
    OBSERVED = "observed"  # any other word of the observer
    SETTING = "setting"  # a variable or limit that matters


class Teller(Record, frozen=True, kw_only=True):
    """Who wrote a line, as far as the line or its file says. `rank` is global, `local_rank` is not; `component` is an actor or a pod."""

    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    component: str | None = None


class Stamp(Record, frozen=True, kw_only=True):
    """A time as a line shows it. `form` tells clocks apart that may be hours from each other; `day` counts from 2000-01-01, if given."""

    form: str
    second_of_day_s: float
    day: int | None = None
    has_year: bool = False


class Where(Record, frozen=True):
    """The line a fact stands in; lines count from 1."""

    file: str
    line: int


# Orders of two files are kept apart: which of two files was read first says nothing of which line was written first.
FILE_ORDERS = 1 << 40


class Fact(Record, frozen=True, kw_only=True):
    """One statement. `values` holds the statement's own numbers and names, as written.

    `order` counts over all that was read, each file from a multiple of FILE_ORDERS on.
    """

    kind: Kind
    word: str
    teller: Teller
    where: Where
    order: int
    at: Stamp | None
    text: str
    values: dict[str, str] = msgspec.field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """A value as a number; None where the line does not give it."""
        try:
            return float(self.values[name])
        except (KeyError, ValueError):
            return None


_DAY_S = 86400.0


def seconds_between(earlier: Stamp | None, later: Stamp | None) -> float | None:
    """Seconds from one stamp to another; None where the two cannot be compared. Over midnight where one has no date."""
    if earlier is None or later is None or ("kernel" in {earlier.form, later.form} and earlier.form != later.form):
        return None
    seconds = later.second_of_day_s - earlier.second_of_day_s
    if earlier.day is None or later.day is None:
        return seconds if seconds >= 0 else seconds + _DAY_S
    days = later.day - earlier.day
    if earlier.has_year != later.has_year:  # one of the two is a day of the year only: 2000 and a real year may differ by a leap day
        days = (later.day - earlier.day + 183) % 366 - 183
        days = 0 if abs(days) <= 1 and abs(seconds) < _DAY_S / 2 else days
    return days * _DAY_S + seconds
