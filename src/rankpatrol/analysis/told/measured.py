"""What observers measured beside the stacks they pasted: CPU, power, bytes, progress bars, and that nothing moved."""

import re
from itertools import pairwise
from statistics import median

from rankpatrol.core.records import Record


class Measured(Record, frozen=True, kw_only=True):
    """`moved`: what got on, by rank (None: whose is not said). `still`: lines that say that nothing did; `no_step`: that no step was made.

    `power_w` is by rank.
    """

    moved: tuple[tuple[int | None, str], ...] = ()
    still: tuple[str, ...] = ()
    no_step: tuple[str, ...] = ()
    power_w: dict[int, float]
    gpu_busy: bool | None = None
    steps_advance: bool = False


_RANK = re.compile(r"\brank[ =:]?(\d+)", re.IGNORECASE)
_PAIR = re.compile(r"(\d[\d,_]*(?:\.\d+)?)\s?([KMGT]i?B|%)?(?:/\d+)?\s*(?:->|→|=>)\s*(\d[\d,_]*(?:\.\d+)?)\s?([KMGT]i?B|%)?")
_CHILD_CPU = re.compile(r"child\w*(?:utime|cpu|ticks)\w*?(?:_(\d+)s)?[=: ]+(\d+(?:\.\d+)?)", re.IGNORECASE)
_DELTA = re.compile(r"(\w*(?:rchar|wchar|read_bytes|write_bytes|written|bytes)\w*)_(?:delta|per)\w*[=: ]+\+?(\d+)", re.IGNORECASE)
# Compilers that work for a rank: each short-lived, so that one that is seen at all is work.
_COMPILERS = re.compile(r"\b(ptxas|cicc|nvcc|cc1plus|ninja|hipcc|clang\+*)\b.*\b(?:[5-9]\d|[1-9]\d{2,})(?:\.\d+)?\s?%", re.IGNORECASE)
_POWERS = re.compile(r"(?<![\w.])(\d{1,4})\s*[=:]\s*(\d+(?:\.\d+)?)\s*W?\b")
_POWER_LINE = re.compile(r"power", re.IGNORECASE)
_POWER_OF = re.compile(r"power(?:[._]\w+)?[=: ]+(\d+(?:\.\d+)?)", re.IGNORECASE)
_STILL = re.compile(
    r"\b(identical|unchanged|no change|not (?:moved|changed|advanced)|same (?:stack|frames?|counts?|line)"
    r"|(?:no|without)(?: an?| any| new)? progress|stuck (?:for|since)|hung (?:for|since))\b",
    re.IGNORECASE,
)
# A long phase has no steps either: this tells of a stall only where no such phase is seen.
_NO_STEP = re.compile(r"\b(?:no|without)(?: an?| any| new)? (?:optimizer )?steps?\b", re.IGNORECASE)
# Numbers that count work; a changed setting, or a count of attempts, does not.
_COUNTS = re.compile(
    r"bar|bytes|size|\bdu\b|steps?\b|progress|samples|examples|read|writ|rows|files|rchar|wchar|eta|it/s|%|\d/\d|[KMGT]i?B\b",
    re.IGNORECASE,
)
_BUSY = re.compile(r"util\w*[^0-9\n]{0,12}(9\d|100)\b|(?<!\d)(9\d|100) ?%", re.IGNORECASE)
_WORKING_SHARE = 0.5
_WORKING_BYTES = 65536
_FULL_POWER = 2.0


def measure(context: tuple[str, ...]) -> Measured:
    """All that can be read from the lines between stacks. Never CPU of a process alone as a sign of work."""
    moved: list[tuple[int | None, str]] = []
    power: dict[int, float] = {}
    for line in context:
        if len(line) > _LONGEST:
            continue
        rank = int(found[1]) if (found := _RANK.search(line)) else None
        moved += [(rank, what) for what in _moved(line)]
        power |= _power(line, rank)
    short = [line.strip(" -#") for line in context if len(line) <= _LONGEST]
    still = tuple(line for line in short if _STILL.search(line) or _same_numbers(line))
    no_step = tuple(line for line in short if _NO_STEP.search(line))
    busy = any(_BUSY.search(line) for line in context if "util" in line.lower() or "gpu" in line.lower())
    return Measured(
        moved=tuple(moved),
        still=still,
        no_step=no_step,
        power_w=power,
        gpu_busy=busy or None,
        steps_advance=_advance(context),
    )


def _advance(context: tuple[str, ...]) -> bool:
    """True where lines of a job's log count steps upwards. When they were written is not said: this alone is no sign of life."""
    steps = _steps(context)
    return len(steps) > 1 and steps == sorted(steps) and steps[0] < steps[-1]


def steps_between(around: tuple[tuple[str, ...], ...]) -> bool:
    """True where the log's steps went on from one look to the next: each group of lines around the looks counts further."""
    last = [max(steps) for lines in around if (steps := _steps(lines))]
    return len(around) > _ONE_LOOK and len(last) > 1 and all(before < after for before, after in pairwise(last))


def _steps(lines: tuple[str, ...]) -> list[int]:
    return [int(found[1]) for line in lines if (found := _STEP.search(line))]


# Before it and after it.
_ONE_LOOK = 2

_STEP = re.compile(r"^(?:[\[\d].*?)?\b(?:step|iter(?:ation)?)s?[ =:#]{1,3}(\d+)", re.IGNORECASE)


def draws_full_power(measured: Measured, rank: int) -> str | None:
    """A sentence where this rank's GPU draws at least twice what the others' do: they wait, it works."""
    own = measured.power_w.get(rank)
    others = [watts for each, watts in measured.power_w.items() if each != rank]
    if own is None or not others or own < _FULL_POWER * median(others):
        return None
    return f"its GPU draws {own:g} W, the others' {median(others):g} W"


def _same_numbers(line: str) -> bool:
    pairs = _PAIR.findall(line) if _COUNTS.search(line) else []
    return bool(pairs) and all(before == after for before, _, after, _ in pairs)


def _moved(line: str) -> list[str]:
    found: list[str] = []
    for before, _, after, _ in _PAIR.findall(line) if _COUNTS.search(line) else ():
        old, new = (float(number.replace(",", "").replace("_", "")) for number in (before, after))
        if new > old:
            found.append(f"went from {before} to {after} ({line.strip(' -#')[:60]})")
    for seconds, spent in _CHILD_CPU.findall(line):
        if float(spent) >= _WORKING_SHARE * float(seconds or 1):
            found.append(f"its children used {spent} s of CPU{f' in {seconds} s' if seconds else ''}")
    if (busy := _COMPILERS.search(line)) is not None:
        found.append(f"{busy[1]} runs below it")
    for what, size in _DELTA.findall(line):
        if float(size) >= _WORKING_BYTES:
            found.append(f"moved {size} bytes ({what})")
    return found


def _power(line: str, rank: int | None) -> dict[int, float]:
    if not _POWER_LINE.search(line):
        return {}
    if rank is not None and (own := _POWER_OF.search(line)):
        return {rank: float(own[1])}
    return {int(each): float(watts) for each, watts in _POWERS.findall(line.partition(":")[2] or line)}


_LONGEST = 600
