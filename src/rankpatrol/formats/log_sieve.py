"""Which lines of a long log are worth a close look: decided by shape, so that a line like a thousand before costs next to nothing. Pure."""

import re
from collections import deque
from collections.abc import Iterator

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_reader import LONGEST_LINE
from rankpatrol.formats.log_tables import REGEXES, ROWS, hinted

# What is no longer told apart in a shape: counters, times and figures.
_RUNNING = b"0123456789.-+:,"
_MOST_SHAPES = 100_000
# Of one shape in one block, the first and the last so many lines are looked at.
_MOST_ALIKE = 600
_SOME_ALIKE = 1
# Of a shape that was read closely so often in other files, the last line of a head or a tail is looked at.
_WELL_KNOWN = 64
# Of a progress bar.
_MOST_STATES = 6
# These matter wherever they stand; what else a log tells matters at its start and its end.
_ALWAYS = frozenset({
    Kind.TIMED_OUT, Kind.STATUS, Kind.WATCHDOG_STUCK, Kind.GOING_DOWN, Kind.MISMATCH, Kind.BARRIER_ABSENT,
    Kind.NAMED_LAGGING, Kind.SIGNALLED, Kind.EXITED, Kind.DIED, Kind.KILLED_BY_KERNEL, Kind.LOADER_DIED, Kind.SYMPTOM,
    Kind.COLLATERAL, Kind.STOPPED_BY_LAUNCHER, Kind.SCHEDULER, Kind.FINISHED, Kind.WORLD,
})  # fmt: skip
_PYTHON = ("error", "exception", "traceback", 'file "', "interrupt", "stopiteration")
_COUNTERS = (b"step", b"iter", b"epoch", b"num updates", b"it/s", b"s/it")
# A wrapped statement goes on in the next lines.
_OPENS = b"WorkNCCL("
_FOLLOWING = 2


def _hints() -> re.Pattern[bytes]:
    words = {hint for row in ROWS if row.kind in _ALWAYS for hint in row.hints} | set(_PYTHON)
    shortest = {word for word in words if not any(other != word and other in word for other in words)}
    return re.compile(b"|".join(re.escape(word.encode()) for word in sorted(shortest)))


_HINTS = _hints()
_PYTHON_WORDS = tuple(word.encode() for word in _PYTHON)


class Sieve:
    """Takes a file's bytes in order, and gives (line number, text) of the lines to read closely: its head and tail, some between.

    `shapes` may be shared by the files of one job: what is known of a shape holds for all. So may `read_closely`, how many lines of
    each shape were given of heads and tails: then a shape that came often is not given line by line again.
    """

    def __init__(
        self,
        *,
        head_bytes: int,
        tail_bytes: int,
        shapes: dict[bytes, int] | None = None,
        read_closely: dict[bytes, int] | None = None,
    ) -> None:
        self._head_left = head_bytes
        self._tail_bytes = tail_bytes
        self._rest = b""
        self._number = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._shapes = {} if shapes is None else shapes
        self._read_closely = read_closely
        self._in_long_line = False

    def feed(self, chunk: bytes) -> Iterator[tuple[int, str]]:
        """Lines that are known to be worth it. Memory stays flat, however long a line is."""
        block = self._whole_lines(chunk)
        if not block:
            return
        if self._head_left > 0:
            cut = block.find(b"\n", min(self._head_left, len(block)) - 1) + 1 or len(block)
            self._head_left -= cut
            yield from self._all(block[:cut])
            block = block[cut:]
            if not block:
                return
        self._waiting.append(block)
        self._waiting_bytes += len(block)
        while self._waiting_bytes - len(self._waiting[0]) > self._tail_bytes:
            oldest = self._waiting.popleft()
            self._waiting_bytes -= len(oldest)
            yield from self._some(oldest)

    def finish(self) -> Iterator[tuple[int, str]]:
        """The tail, closely."""
        while len(self._waiting) > 1 and self._waiting_bytes > self._tail_bytes:
            oldest = self._waiting.popleft()
            self._waiting_bytes -= len(oldest)
            yield from self._some(oldest)
        for block in self._waiting:
            before = max(0, len(block) - self._tail_bytes) if len(self._waiting) == 1 else 0
            cut = block.rfind(b"\n", 0, before) + 1 if before else 0
            if cut:
                yield from self._some(block[:cut])
            yield from self._all(block[cut:])
        self._waiting.clear()
        if self._rest:
            yield from self._all(self._rest + b"\n")
            self._rest = b""

    def _whole_lines(self, chunk: bytes) -> bytes:
        """Whole lines, with what is left of the last chunk before them; of a line that is far too long its begin alone."""
        if self._in_long_line:
            end = _line_end(chunk)
            if end < 0:
                return b""
            chunk = chunk[end:]
            self._in_long_line = False
        data = self._rest + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
        if end < 0:
            if len(data) > 4 * LONGEST_LINE:
                self._in_long_line, self._rest = True, b""
                return data[:LONGEST_LINE] + b"\n"
            self._rest = data
            return b""
        self._rest = data[end + 1 :]
        return data[: end + 1]

    def _all(self, block: bytes) -> Iterator[tuple[int, str]]:
        lines = block.split(b"\n")[: -1 if block.endswith(b"\n") else None]
        skipped = self._well_known(block, len(lines)) if self._read_closely is not None else ()
        for at, text in enumerate(lines):
            self._number += 1
            if at not in skipped:
                yield from _bars(self._number, text)
        if not block.endswith(b"\n"):
            self._number -= 1  # cut at a carriage return: the same line goes on in the next block

    def _well_known(self, block: bytes, lines: int) -> frozenset[int]:
        """Places of lines like many that were read closely before, but for the last of each; what always matters stays."""
        known = self._read_closely
        if known is None:
            return frozenset()
        shapes = block.translate(None, _RUNNING).split(b"\n")[:lines]
        last = dict(zip(shapes, range(lines), strict=True))
        often = {shape for shape in last if known.get(shape, 0) >= _WELL_KNOWN and self._shapes.get(shape) != _MOST_ALIKE}
        for shape in shapes:
            if shape not in often and (shape in known or len(known) < _MOST_SHAPES):
                known[shape] = known.get(shape, 0) + 1
                if known[shape] == _WELL_KNOWN:
                    self._shapes.setdefault(shape, _worth(block.split(b"\n")[last[shape]][:LONGEST_LINE]))
        return frozenset(at for at, shape in enumerate(shapes) if shape in often and at != last[shape])

    def _some(self, block: bytes) -> Iterator[tuple[int, str]]:
        lines = block.split(b"\n")
        shapes = block.translate(None, _RUNNING).split(b"\n")
        if block.endswith(b"\n"):
            del lines[-1], shapes[-1]
        last = dict(zip(shapes, range(len(shapes)), strict=True))
        self._learn(lines, last)
        for at in self._wanted(lines, shapes, last):
            yield from _bars(self._number + at + 1, lines[at])
        self._number += len(lines) if block.endswith(b"\n") else len(lines) - 1

    def _learn(self, lines: list[bytes], last: dict[bytes, int]) -> None:
        """Sort new shapes: how many alike lines a block are worth a look."""
        new = last.keys() - self._shapes.keys()
        if len(self._shapes) + len(new) > _MOST_SHAPES:
            self._shapes.clear()
            new = set(last)
        for shape in new:
            self._shapes[shape] = _worth(lines[last[shape]][:LONGEST_LINE])

    def _wanted(self, lines: list[bytes], shapes: list[bytes], last: dict[bytes, int]) -> list[int]:
        """Places in this block. Most shapes are worth nothing, so most blocks are done without a look at each line."""
        some = [shape for shape in last if self._shapes[shape] == _SOME_ALIKE]
        many = frozenset(shape for shape in last if self._shapes[shape] == _MOST_ALIKE)
        wanted = {last[shape] for shape in some}
        if some and self._read_closely is None:
            first = dict(zip(reversed(shapes), range(len(shapes) - 1, -1, -1), strict=True))
            wanted.update(first[shape] for shape in some)
        if many:
            places: dict[bytes, list[int]] = {}
            for at, shape in enumerate(shapes):
                if shape in many:
                    places.setdefault(shape, []).append(at)
            for found in places.values():
                wanted.update(found[:_MOST_ALIKE], found[-_MOST_ALIKE:])
                wanted.update(at + after for at in found if _OPENS in lines[at] for after in range(1, _FOLLOWING + 1))
        return sorted(at for at in wanted if at < len(lines) and lines[at])


def _worth(line: bytes) -> int:
    """How many lines of this shape a block are worth a look: many where a row fits, some where a word of one stands, none otherwise."""
    low = line.lower().replace(b"_", b" ")
    if not _HINTS.search(low):
        return _SOME_ALIKE if any(word in low for word in _COUNTERS) else 0
    text = _text(line)
    if any(word in low for word in _PYTHON_WORDS) or any(ROWS[at].kind in _ALWAYS and REGEXES[at].search(text) for at in hinted(text)):
        return _MOST_ALIKE
    return _SOME_ALIKE


def _bars(number: int, line: bytes) -> Iterator[tuple[int, str]]:
    """A line that a progress bar wrote over again and again: the first state and the last ones."""
    if b"\r" not in line:
        yield number, _text(line)
        return
    states = [state for state in line.split(b"\r") if state]
    for state in states if len(states) <= _MOST_STATES else [states[0], *states[1 - _MOST_STATES :]]:
        yield number, _text(state)


def _text(line: bytes) -> str:
    return line[:LONGEST_LINE].replace(b"\0", b"").decode("utf-8", "replace")


def _line_end(chunk: bytes) -> int:
    at = chunk.find(b"\n")
    return at if at >= 0 else -1
