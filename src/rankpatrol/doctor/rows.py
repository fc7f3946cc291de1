"""What a check says, and what all of them say together. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from rankpatrol.core.errors import ExitCode
from rankpatrol.core.records import Record


class Level(StrEnum):
    """HINT: all is well, and could be better. FORBIDDEN: it would work, but the kernel or the file system refuses."""

    OK = "ok"
    HINT = "hint"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FORBIDDEN = "forbidden"
    CRITICAL = "critical"


class Row(Record, frozen=True):
    """One thing that was looked at: how it stands, in one sentence, and what to do about it."""

    name: str
    level: Level
    found: str
    fix: str = ""


# The worst says it all; nothing that is known to be wrong hides behind something that is not known.
_CODES = (
    (Level.CRITICAL, ExitCode.CRITICAL),
    (Level.FORBIDDEN, ExitCode.NO_PERMISSION),
    (Level.WARNING, ExitCode.WARNING),
    (Level.UNKNOWN, ExitCode.UNKNOWN),
)


def exit_code(rows: Iterable[Row]) -> ExitCode:
    """The exit code of CONTRACT for all rows."""
    levels = {row.level for row in rows}
    return next((code for level, code in _CODES if level in levels), ExitCode.OK)
