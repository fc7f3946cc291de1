"""What a check of checkpoints says."""

from enum import StrEnum

from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Record


class CheckpointVerdict(StrEnum):
    """OK is the only one to resume from."""

    OK = "ok"
    INCOMPLETE = "incomplete"
    CORRUPT = "corrupt"
    UNKNOWN = "unknown"


class CheckpointCause(StrEnum):
    """The taxonomy's words for checkpoints."""

    NONE = "none"
    TRUNCATED = "ckpt_truncated"
    INCOMPLETE_SET = "ckpt_incomplete_set"
    UNKNOWN = "unknown"


class CheckpointReport(Record, frozen=True, kw_only=True):
    """One checkpoint, judged.

    `file`, `key` and `offset_bytes` say where the first damage is, `more` tells further ones, or doubts about one that is good.
    `content_verified`: every byte met its checksum.
    """

    path: str
    layout: str
    verdict: CheckpointVerdict
    cause: CheckpointCause
    sentence: str
    file: str | None = None
    key: str | None = None
    offset_bytes: int | None = None
    step: int | None = None
    size_bytes: int
    modified_unix_s: float
    content_verified: bool = False
    more: tuple[str, ...] = ()


class Selection(Record, frozen=True, kw_only=True):
    """The newest good checkpoint of a directory, the newer ones that are not good, and the paths of older ones, which were not read.

    `beside` holds the other files of the same checkpoint, where it is a sub-directory; all of them are good. `pointers`: those that name
    another one, or nothing. `lost_steps`: how far the newest rejected one was ahead, where names tell steps.
    """

    directory: str
    newest_good: CheckpointReport | None
    beside: tuple[CheckpointReport, ...] = ()
    rejected: tuple[CheckpointReport, ...] = ()
    older: tuple[str, ...] = ()
    pointers: tuple[CheckpointReport, ...] = ()
    lost_steps: int | None = None


class Judgement(Record, frozen=True, kw_only=True):
    """What a layout says of one file; `said` goes on from the file's name."""

    verdict: CheckpointVerdict
    cause: CheckpointCause
    said: str
    key: str | None = None
    offset_bytes: int | None = None
    content_verified: bool = False


class Look(Record, frozen=True, kw_only=True):
    """How closely to look. Without `content` only what places and lengths can tell; with `numbers` also for NaN, Inf and all zeros."""

    now_unix_s: float
    content: bool = True
    numbers: bool = False


# A file or set that was written within this time may still be being written.
STILL_WRITING_S = 600.0


def good(said: str, *, content_verified: bool = False) -> Judgement:
    """Nothing speaks against it."""
    return Judgement(verdict=CheckpointVerdict.OK, cause=CheckpointCause.NONE, said=said, content_verified=content_verified)


def corrupt(said: str, *, key: str | None = None, offset_bytes: int | None = None, cut: bool = False) -> Judgement:
    """What is there contradicts itself."""
    cause = CheckpointCause.TRUNCATED if cut else CheckpointCause.UNKNOWN
    return Judgement(verdict=CheckpointVerdict.CORRUPT, cause=cause, said=said, key=key, offset_bytes=offset_bytes)


def cut_short(said: str, *, key: str | None = None, offset_bytes: int | None = None) -> Judgement:
    """It ends before its end."""
    return Judgement(verdict=CheckpointVerdict.INCOMPLETE, cause=CheckpointCause.TRUNCATED, said=said, key=key, offset_bytes=offset_bytes)


def lacking(said: str, *, key: str | None = None) -> Judgement:
    """Something that it needs is not there."""
    return Judgement(verdict=CheckpointVerdict.INCOMPLETE, cause=CheckpointCause.INCOMPLETE_SET, said=said, key=key)


def unknown(said: str, *, key: str | None = None) -> Judgement:
    """It cannot be told."""
    return Judgement(verdict=CheckpointVerdict.UNKNOWN, cause=CheckpointCause.UNKNOWN, said=said, key=key)


def say_since(age_s: float) -> str:
    """What the time since its last write makes of something unfinished."""
    ago = f"last written {say_duration(max(0.0, age_s))} ago"
    return f"{ago}: it may still be being written" if age_s < STILL_WRITING_S else f"{ago}: its writer died, or the disk was full"
