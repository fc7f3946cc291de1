"""What torch's own analyser (`torchfrtrace`) prints: which ranks are missing from a collective, and which disagree on it."""

import re

from rankpatrol.core.records import Record

_MARKS = ("Not all ranks joining collective", "Collective sequence number")
_BEGINS = re.compile(
    r"(?:Not all ranks joining collective, sequence number: (?P<missing>\d+)|Collective sequence number: (?P<errors>\d+) has errors)"
)
_FIELD = re.compile(r"^\s*(group info|collective|missing ranks|expected ranks|joined ranks|world size|error msg)\s*:\s*(.+?)\s*$")
_ACCUSED = re.compile(
    r"Culprit rank (?P<rank>\d+); Error type: (?P<type>\w+)"
    r"(?:, Expected [^:]*: '(?P<expected>.*?)' does not match found [^:]*: '(?P<found>.*?)')?"
)


class Accused(Record, frozen=True, kw_only=True):
    """One rank that the analyser calls a culprit: it compares all with the first dump it read, whoever that is."""

    rank: int
    error: str
    expected: str
    found: str


class TraceFinding(Record, frozen=True, kw_only=True):
    """One finding about one collective."""

    sequence: int
    group: str
    operation: str
    expected: tuple[int, ...]
    missing: tuple[int, ...] = ()
    accused: tuple[Accused, ...] = ()


def looks_like_fr_trace(text: str) -> bool:
    """True for the analyser's own words."""
    return any(mark in text for mark in _MARKS) and "expected ranks" in text


def read_fr_trace(text: str) -> tuple[TraceFinding, ...]:
    """The findings in the order in which they are printed."""
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        if begins := _BEGINS.search(line):
            found.append({"sequence": begins["missing"] or begins["errors"]})
        elif found and (field := _FIELD.match(line)):
            found[-1].setdefault(field[1], field[2])
    return tuple(_finding(fields) for fields in found)


def _finding(fields: dict[str, str]) -> TraceFinding:
    size = fields.get("world size", "")
    expected = (
        _ranks(fields.get("expected ranks", "")) or tuple(range(int(size)))
        if size.isdecimal()
        else _ranks(fields.get("expected ranks", ""))
    )
    return TraceFinding(
        sequence=int(fields["sequence"]),
        group=fields.get("group info", ""),
        operation=fields.get("collective", "").rpartition(":")[2],
        expected=expected,
        missing=_ranks(fields.get("missing ranks", "")),
        accused=tuple(
            Accused(rank=int(seen["rank"]), error=seen["type"], expected=seen["expected"] or "", found=seen["found"] or "")
            for seen in _ACCUSED.finditer(fields.get("error msg", ""))
        ),
    )


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(number) for number in re.findall(r"\d+", text)}))
