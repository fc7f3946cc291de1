"""Lines of a log into facts: prefixes off, cut and wrapped lines mended, tracebacks gathered, the tables asked. Pure; one reader a file."""

import re
from collections.abc import Iterator

from rankpatrol.core.testimony import Fact, Kind, Stamp, Teller, Where
from rankpatrol.formats.log_places import Pods
from rankpatrol.formats.log_prefixes import Line, peel
from rankpatrol.formats.log_raised import Raised, Tracebacks
from rankpatrol.formats.log_stamps import stamp_in
from rankpatrol.formats.log_tables import REGEXES, ROWS, Row, hinted
from rankpatrol.formats.long_numbers import without_long_numbers
from rankpatrol.formats.steps import find_step

# A line that is longer says nothing more that is looked for; a fact keeps less of it.
LONGEST_LINE = 16384
_LONGEST_TEXT = 400
# Where one rank's line begins in the middle of another's.
_CUT_IN = re.compile(r"(?:\[rank\d+\]:? ?)?\[[EWF](?:\d{3,4} [\d:.]+)? [\w.]+\.(?:cpp|hpp|cc):\d+\]|\[rank\d+\]:|(?<=\S)\[default\d+\]:")
# `# at 03-18 00:00:00`, `# 12:03:11`: the observer's clock at the end of a job's line.
_TRAILING_CLOCK = re.compile(r"\s#\s(?:at )?(?P<at>[\d/:. T-]{5,32})\s*$")
_OBSERVER = re.compile(r"^\s*(?:--\s|##?\s|\$\s|>>>\s)")
# A wrapped statement of the watchdog: its end stands on the next line.
_OPEN_ENDED = re.compile(r"(?:Watchdog caught collective|Work(?:NCCL|XCCL|HCCL)\()")
_CLOSED = re.compile(r"milliseconds before|timed out in|async exception|ran for \d+ m")
_FRACTION = re.compile(
    r"(?<![\w.])(?P<done>\d{1,12}(?:\.\d+)?[kMGT]?) ?(?:/"
    r"|of) ?(?P<total>\d{1,12}(?:\.\d+)?[kMGT]?)(?!\w)(?![\d.]*:)|(?P<percent>\d{1,3}(?:\.\d+)?) ?%"
    r"|(?P<count>\d{1,12}) ?(?:examples|samples|it|files|docs|docu\w+|rows|lines)\b(?!/s)"
)
_ETA = re.compile(r"<(?:(?P<d>\d+) days?, )?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d\d)")
_STEP_TIME = re.compile(
    r"(?:elapsed time per iteration \((?P<u1>ms|s)\)|(?:step|iter(?:ation)?"
    r"|batch)[ _]?time(?:[_ ]?\(?(?P<u2>ms|s)\)?)?|time/(?:step|iter)|sec(?:onds)?/(?:step|iter))"
    r"['\"]?\s*[:=]\s*['\"]?(?P<n>\d+(?:\.\d+)?)\s*(?P<u3>ms|s)?"
    r"|(?<![\w.])(?P<each>\d+(?:\.\d+)?) ?s(?:ec)?/(?:it|iter|step|batch)\b|(?<![\w.])(?P<rate>\d+(?:\.\d+)?) ?(?:it|iter|steps?)/s\b",
    re.IGNORECASE,
)
_ELAPSED = re.compile(r"\[(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d\d)<")
_PULSE_STEP = re.compile(r"\b(?:global_)?(?:step|iter(?:ation)?)[ =:]+(\d+)\b", re.IGNORECASE)
# Megatron's timers: `save-checkpoint ....: (518233.90, 518240.11)`. They name a phase that is over.
_TIMER = re.compile(r"^\s*[\w/-]+ \.{2,}: ")
# Said over and over by a rank that lives; looked at only where no other row has spoken.
_SPOKEN_FOR = frozenset({Kind.TIMED_OUT, Kind.STATUS, Kind.MISMATCH, Kind.WATCHDOG_STUCK})


class Reader:
    """Reads one file, line by line, in order. `order` continues over files."""

    def __init__(self, file: str, teller: Teller = Teller(), *, order: int = 0) -> None:  # ruff: ignore[B008] - frozen
        self.order = order
        self._file = file
        self._teller = teller
        self._number = 0
        self._open: Line | None = None
        self._tracebacks = Tracebacks()
        self._pods = Pods()

    def read(self, number: int, text: str) -> Iterator[Fact]:
        """The facts of one line. Never raises: a line that fits nothing states nothing."""
        self._number = number
        whole, clock = _without_clock(without_long_numbers(text[:LONGEST_LINE].rstrip()))
        if "datetime: " in whole:
            clock = stamp_in(whole.partition("datetime: ")[2])
        for line in self._mended(whole):
            yield from self._facts(line, clock)

    def finish(self) -> Iterator[Fact]:
        """What was still open when the file ended."""
        if self._open is not None:
            yield from self._told(self._open, None)
            self._open = None
        yield from (self._raised(raised) for raised in self._tracebacks.finish())

    def _mended(self, text: str) -> Iterator[Line]:
        """The statements of one line: cut apart where two ranks wrote into each other, put together where a terminal wrapped one."""
        first = peel(text, self._teller)
        parts = _parts(first)
        if self._open is not None:
            whole = _joined(self._open, parts[0])
            self._open = None
            parts = [whole, *parts[1:]]
        *before, last = parts
        yield from before
        if _OPEN_ENDED.search(last.text) and not _CLOSED.search(last.text) and len(last.text) < 1000:
            self._open = last
        else:
            yield last

    def _facts(self, line: Line, clock: Stamp | None) -> Iterator[Fact]:
        self.order += 1
        teller = self._tracebacks.whose(line)
        if teller is not line.teller:
            line = Line(text=line.text, teller=teller, at=line.at, level=line.level, group=line.group, group_rank=line.group_rank)
        yield from (self._raised(raised) for raised in self._tracebacks.take(line, self._number, self.order))
        for pod, rank in self._pods.take(line.text):
            yield self._fact(Kind.PLACED, "component", line, {"component": pod, "rank": rank}, clock)
        yield from self._told(line, clock)

    def _told(self, line: Line, clock: Stamp | None) -> Iterator[Fact]:
        text = line.text
        no_phase = bool(_OBSERVER.match(text) or _TIMER.match(text))
        spoken: set[Kind] = set()
        for at in hinted(text):
            row = ROWS[at]
            if no_phase and row.kind is Kind.PHASE:
                continue  # what the observer says of a phase is not the job's own word
            if spoken and not _may_speak_too(row, spoken):
                continue
            found = REGEXES[at].finditer(text) if row.kind is Kind.GPU else filter(None, (REGEXES[at].search(text),))
            for seen in found:
                spoken.add(row.kind)
                yield self._fact(row.kind, row.word, line, _values(line, seen, row.kind), clock)
        observed = bool(_OBSERVER.match(text))
        yield from self._progress(line, clock, spoken, observed=observed)
        if observed and not spoken:
            yield self._fact(Kind.OBSERVED, "note", line, {}, clock)

    def _progress(self, line: Line, clock: Stamp | None, spoken: set[Kind], *, observed: bool) -> Iterator[Fact]:
        if observed or spoken - {Kind.TIMES, Kind.SETTING, Kind.WORLD, Kind.DATA_ENDED, Kind.GPU, Kind.OBSERVED, Kind.SILENCE}:
            return
        mark = find_step(line.text)
        if mark is not None and not spoken & {Kind.DATA_ENDED}:
            values = {"step": str(mark.step), "strength": str(int(mark.strength))} | _step_time(line.text) | _elapsed(line.text)
            yield self._fact(Kind.PROGRESS, "step", line, values, clock)
        elif not spoken and (line.at or clock or line.teller.rank is not None):
            yield self._fact(Kind.OBSERVED, "other_line", line, {}, clock)

    def _raised(self, raised: Raised) -> Fact:
        values = {"message": raised.message, "place": raised.place, "frames": raised.frames, "header": str(int(raised.header))}
        return Fact(
            kind=Kind.RAISED,
            word=raised.exception,
            teller=raised.teller,
            where=Where(self._file, raised.line),
            order=raised.order,
            at=raised.at,
            text=f"{raised.exception}: {raised.message}"[:_LONGEST_TEXT] if raised.message else raised.exception,
            values={key: value for key, value in values.items() if value},
        )

    def _fact(self, kind: Kind, word: str, line: Line, values: dict[str, str], clock: Stamp | None) -> Fact:
        return Fact(
            kind=kind,
            word=word,
            teller=line.teller,
            where=Where(self._file, self._number),
            order=self.order,
            at=clock or line.at,
            text=line.text.strip()[:_LONGEST_TEXT],
            values=values,
        )


def _may_speak_too(row: Row, spoken: set[Kind]) -> bool:
    """Whether a row may add to what others said of the same line."""
    if not row.also or (spoken & _SPOKEN_FOR and row.kind not in {Kind.GOING_DOWN, Kind.STATUS}):
        return False
    return row.kind not in spoken or row.kind in {Kind.SYMPTOM, Kind.OBSERVED, Kind.NOW}


def _without_clock(text: str) -> tuple[str, Stamp | None]:
    if " #" in text[-40:] and (seen := _TRAILING_CLOCK.search(text)):
        return text[: seen.start()].rstrip(), stamp_in(seen["at"])
    return text, None


def _parts(first: Line) -> list[Line]:
    cuts = [seen.start() for seen in _CUT_IN.finditer(first.text) if seen.start() > 0]
    if not cuts:
        return [first]
    ends = [*cuts[1:], len(first.text)]
    head = Line(
        text=first.text[: cuts[0]], teller=first.teller, at=first.at, level=first.level, group=first.group, group_rank=first.group_rank
    )
    # What stood before the line belongs to its first writer alone; the launcher's rank does not name the second.
    return [head, *(peel(first.text[begin:end], Teller(host=first.teller.host)) for begin, end in zip(cuts, ends, strict=True))]


def _joined(before: Line, after: Line) -> Line:
    return Line(
        text=before.text + after.text,
        teller=before.teller,
        at=before.at,
        level=before.level,
        group=before.group,
        group_name=before.group_name,
        group_rank=before.group_rank,
    )


def _values(line: Line, seen: re.Match[str], kind: Kind) -> dict[str, str]:
    values = {key: value.strip() for key, value in seen.groupdict().items() if value is not None}
    if line.group is not None:
        values.setdefault("group", line.group)
    if line.group_name:
        values.setdefault("group_name", line.group_name)
    if line.group_rank is not None:
        values.setdefault("group_rank", str(line.group_rank))
    if line.level:
        values.setdefault("level", line.level)
    if kind is Kind.PHASE:
        values |= _fraction(line.text)
    if kind is Kind.PULSE and (counter := _PULSE_STEP.search(line.text)):
        values["step"] = counter[1]
    return values


def _fraction(text: str) -> dict[str, str]:
    """How far a phase is, and how long it says that it will still take."""
    found: dict[str, str] = {}
    for seen in _FRACTION.finditer(text):
        found = {key: value for key, value in seen.groupdict().items() if value is not None} | found
    if eta := _ETA.search(text):
        days, hours, minutes, seconds = (int(eta[part] or 0) for part in "dhms")
        found["eta_s"] = str(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return found


def _step_time(text: str) -> dict[str, str]:
    seen = _STEP_TIME.search(text)
    if seen is None:
        return {}
    if seen["each"] or seen["rate"]:
        seconds = float(seen["each"] or seen["rate"])
        return {"step_s": f"{seconds if seen['each'] else 1 / seconds:g}"} if seconds > 0 else {}
    in_ms = "ms" in {seen["u1"], seen["u2"], seen["u3"]}
    return {"step_s": str(float(seen["n"]) / (1000 if in_ms else 1))}


def _elapsed(text: str) -> dict[str, str]:
    """The clock that a progress bar carries: seconds since it began."""
    seen = _ELAPSED.search(text)
    if seen is None:
        return {}
    hours, minutes, seconds = (int(seen[part] or 0) for part in "hms")
    return {"elapsed_s": str(hours * 3600 + minutes * 60 + seconds)}
