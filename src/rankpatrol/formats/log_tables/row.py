"""One row of a table of log lines."""

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Kind


class Row(Record, frozen=True, kw_only=True):
    """A line's form. `hints` are lower-case words, `_` as a blank, of which the line holds one; groups of `regex` become values.

    `word` names what is said; where it is empty, the regex's group `word` does. `also`: other rows may speak for the same line as well.
    """

    kind: Kind
    word: str = ""
    hints: tuple[str, ...]
    regex: str
    ignore_case: bool = False
    also: bool = False


def rows(kind: Kind, *forms: tuple[str, str, str], also: bool = False, ignore_case: bool = True) -> tuple[Row, ...]:
    """Rows of one kind from (word, hints parted by blanks with `_` for a blank, regex)."""
    return tuple(
        Row(
            kind=kind,
            word=word,
            hints=tuple(hint.replace("_", " ") for hint in hints.split()),
            regex=regex,
            ignore_case=ignore_case,
            also=also,
        )
        for word, hints, regex in forms
    )
