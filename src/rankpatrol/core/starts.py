"""What an attempt is started with."""

from rankpatrol.core.records import Record


class SuspectFile(Record, frozen=True, kw_only=True):
    """A file that a stuck loader process was reading, and how far it was in it, where that is known."""

    file: str
    offset_bytes: int | None = None


class NextStart(Record, frozen=True, kw_only=True):
    """The start of one attempt: from which checkpoint ("" as the script decides), what data to beware of, and not before when."""

    attempt: int
    checkpoint: str = ""
    step: int | None = None
    suspect_files: tuple[SuspectFile, ...] = ()
    not_before_unix_s: float | None = None
