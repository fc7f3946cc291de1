"""What a check of checkpoints says."""

from enum import StrEnum

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
    """One checkpoint, judged. `file`, `key` and `offset_bytes` say where the damage is; `content_verified`: every byte met its checksum."""

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


class Selection(Record, frozen=True, kw_only=True):
    """The newest good checkpoint of a directory, the newer ones that are not good, and the paths of older ones, which were not read.

    `beside` holds the other files of the same checkpoint, where it is a sub-directory; all of them are good.
    """

    directory: str
    newest_good: CheckpointReport | None
    beside: tuple[CheckpointReport, ...] = ()
    rejected: tuple[CheckpointReport, ...] = ()
    older: tuple[str, ...] = ()


class Judgement(Record, frozen=True, kw_only=True):
    """What a layout says of one file; `said` goes on from the file's name."""

    verdict: CheckpointVerdict
    cause: CheckpointCause
    said: str
    key: str | None = None
    offset_bytes: int | None = None
    content_verified: bool = False
