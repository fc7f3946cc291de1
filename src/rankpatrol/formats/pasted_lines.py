"""Lines of a dump as its tool printed them, whatever a terminal, a launcher, a log collector or a mail did to them since."""

import re
from itertools import groupby

from rankpatrol.formats.stack_lines import read_line

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\ufeff")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? ?")
# `[default3]` counts within a node, the others over the job.
_PREFIX = re.compile(r"^(?:\[(rank|default|1,)?(\d{1,5})\](?:<\w+>)?:? ?|(\d{1,5}): )(.*)$")
_FEWEST_PREFIXED_LINES = 3
_STAMPED_SHARE = 0.5


def plain_lines(text: str) -> tuple[list[str], bool]:
    """The lines without colours, stamps, prefixes and margins; True where their prefixes number ranks within a node."""
    lines, local = _demultiplexed(_unstamped(_COLOURS.sub("", text).splitlines()))
    return _dedented(lines), local


def _unstamped(lines: list[str]) -> list[str]:
    """Without the time that a log collector wrote before every line, a frame's as well."""
    stamped = [found.end() for line in lines if (found := _STAMP.match(line))]
    framed = sum(1 for line in lines if (found := _STAMP.match(line)) and read_line(line[found.end() :]) is not None)
    if framed < _FEWEST_PREFIXED_LINES or len(stamped) < _STAMPED_SHARE * len(lines):
        return lines
    return [line[found.end() :] if (found := _STAMP.match(line)) else line for line in lines]


def _demultiplexed(lines: list[str]) -> tuple[list[str], bool]:
    """Lines that a launcher has prefixed with their rank, put together rank by rank."""
    found = [_PREFIX.match(line) for line in lines]
    stacks = sum(1 for match in found if match and read_line(match[4]) is not None)
    if stacks < _FEWEST_PREFIXED_LINES:
        return lines, False
    loose = [line for line, match in zip(lines, found, strict=True) if match is None]
    prefixed = sorted((int(match[2] or match[3]), at, match[4]) for at, match in enumerate(found) if match)
    for rank, its in groupby(prefixed, key=lambda each: each[0]):
        loose += [f"## rank={rank}", *(line for _, _, line in its)]
    return loose, any(match and match[1] == "default" for match in found)


# What begins a dump. People indent the dump of a child below its parent's, and quote dumps in mails.
_BEGINS = re.compile(
    r"([ \t]*(?:>[ \t]*)*)(?:(?:Parent )?Process \d+\b|(?:Current t|T)hread \w+ [(\[]|"
    r"Traceback for thread \d|Thread \d+ \(|[#=]+ *(?i:rank)\b)"
)


def _dedented(lines: list[str]) -> list[str]:
    """The same with each dump at the left edge."""
    margin = ""
    out = []
    for line in lines:
        if found := _BEGINS.match(line):
            margin = found[1]
        elif margin and line.strip() and not line.startswith(margin):
            margin = ""
        out.append(line.removeprefix(margin))
    return out
