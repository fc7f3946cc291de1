"""Plain values out of a pickle: text, numbers, lists, tuples and dicts. Nothing is imported, called or built.

The opcodes are those that torch's own pickler and Python's write for such values; any other one is refused. See pickletools.
Python's own unpickler with a find_class that refuses everything would run no code either, but six bytes (LONG_BINPUT of a high
number) make it take 32 GB for its memo, and a key made of nested tuples makes it hash for ever. Here no value that is kept can be
larger than its file, but for lists that are named many times, and those are counted.

A long list of dicts that differ in a few numbers alone, as a flight recorder's is, is not read value by value: see `alike`.
"""

import re
import struct
from array import array
from collections.abc import Callable
from itertools import repeat
from typing import Final

from rankpatrol.formats.alike import Alike, Pattern, number_at

MOST_BYTES: Final = 128 << 20
_MOST_VALUES: Final = 20_000_000
_DEEPEST: Final = 50
_MOST_PATTERNS: Final = 1024
_MOST_TRIES: Final = 1_000_000


class NotPlain(Exception):
    """The pickle holds something else than plain values, or ends in the middle of one."""


def plain_value(data: bytes) -> object:
    """The value of a pickle, or NotPlain. A list that is named many times counts as often, so that no small file grows large."""
    return _value(_Reader(data))


def value_with_alike(data: bytes, number_of: Callable[[dict[object, object]], str | None]) -> object:
    """The same, but in a list of dicts those that are like an earlier one stand together as `Alike`.

    `number_of` says which number of a dict is told of each; dicts for which it says None are read one by one.
    """
    try:
        return _value(_PatternReader(data, number_of))
    except NotPlain:
        return plain_value(data)  # what was stepped over may have been recalled later; if not, this tells the reason


def _value(reader: "_Reader") -> object:
    if len(reader.data) > MOST_BYTES:
        raise NotPlain(f"it has more than {MOST_BYTES} bytes")
    try:
        reader.run()
    except (IndexError, KeyError, struct.error, TypeError) as problem:
        raise NotPlain(f"it is cut or broken near its byte {reader.at}") from problem
    if len(reader.stack) != 1 or reader.marks:
        raise NotPlain("it ends with more or less than one value")
    return reader.stack[0]


class _Reader:
    """The stack and memo of an unpickler."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.sizes: dict[int, int] = {}
        self.skipped = 0

    def run(self) -> None:
        """Do one opcode after the other. The two that most of a dump is made of, for kept and recalled values, are done in place."""
        data, stack, memo, at = self.data, self.stack, self.memo, 0
        while (opcode := data[at]) != _STOP:
            if opcode == _RECALL:
                stack.append(memo[data[at + 1]])
                at += 2
            elif opcode == _KEEP:
                memo[data[at + 1]] = stack[-1]
                at += 2
            else:
                self.at = at + 1
                self.step(opcode)
                at = self.at

    def step(self, opcode: int) -> None:
        step = _STEPS.get(opcode)
        if step is None:
            raise NotPlain(f"its opcode {chr(opcode)!a} at byte {self.at - 1} is none of plain values")
        step(self)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise NotPlain(f"it is cut at its byte {self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self, length: int) -> None:
        self.stack.append(self.take(length).decode("utf-8", "replace"))

    def mark(self) -> None:
        if len(self.marks) >= _DEEPEST:
            raise NotPlain(f"its values lie more than {_DEEPEST} deep in each other")
        self.marks.append(len(self.stack))

    def from_mark(self) -> list[object]:
        at = self.marks.pop()
        if at > len(self.stack):
            raise NotPlain("it takes more values than there are")
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def top(self, count: int) -> list[object]:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise NotPlain("it takes more values than there are")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def container(self, value: list[object] | dict[object, object] | tuple[object, ...]) -> None:
        self.stack.append(value)
        # Nothing is ever dropped while reading, but for values that a later key replaces: a new container starts anew.
        self.sizes[id(value)] = 1
        if isinstance(value, tuple):
            self.grow(value, value)

    def grow(self, value: object, by: list[object] | tuple[object, ...]) -> None:
        known = self.sizes
        size = known[id(value)] + sum(map(known.get, map(id, by), repeat(1)))
        if size > _MOST_VALUES:
            raise NotPlain(f"it unfolds to more than {_MOST_VALUES} values")
        known[id(value)] = size

    def append(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise NotPlain("it appends to something that is no list")
        self.grow(target, values)
        target.extend(values)

    def set_items(self, pairs: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise NotPlain("it sets items of something that is no dict")
        self.grow(target, pairs)
        # A tuple as a key would be hashed through all its depth.
        if not set(map(type, pairs[::2])) <= _KEYS:
            raise NotPlain("a key of it is neither text nor a number")
        target.update(zip(pairs[::2], pairs[1::2], strict=True))

    def long(self) -> None:
        length = self.byte()
        if length > 8:
            raise NotPlain(f"a number of it takes {length} bytes")
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def keep(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


class _PatternReader(_Reader):
    """The same, which learns the bytes of each dict of a list as a pattern, and steps over the dicts that follow and fit one."""

    def __init__(self, data: bytes, number_of: Callable[[dict[object, object]], str | None]) -> None:
        super().__init__(data)
        self.number_of = number_of
        self.begun: dict[int, int] = {}
        self.patterns: list[Pattern] = []
        self.firsts: list[dict[object, object]] = []
        self.followed: dict[int, int] = {}
        self.last = self.ended = 0
        self.tries_left = _MOST_TRIES

    def run(self) -> None:
        data = self.data
        while (opcode := data[self.at]) != _STOP:
            at = self.at
            # Right behind another dict of the list, or behind `e(`, with which Python's pickler begins the next thousand.
            if opcode == _DICT and self.patterns and at - self.ended in {0, 2} and self.step_over():
                continue
            self.at += 1
            self.step(opcode)
            if opcode == _DICT:
                self.begun[id(self.stack[-1])] = at
            elif opcode == _SET_ITEMS:
                self.learn()

    def learn(self) -> None:
        """Keep the pattern of the dict that has just ended, if its list has more of the kind."""
        first = self.stack[-1]
        self.ended = self.at
        at = self.begun.pop(id(first), None)
        number = self.number_of(first) if isinstance(first, dict) and at is not None else None
        if number is None or len(self.patterns) >= _MOST_PATTERNS:
            return
        pattern = Pattern.learn(self.data[at : self.at], number, self.memo)
        if pattern is not None and isinstance(first, dict):
            self.patterns.append(pattern)
            self.firsts.append(first)
            self.last = len(self.patterns) - 1

    def step_over(self) -> bool:
        """All dicts from here on that fit a pattern. A program repeats itself: what followed last time is tried first."""
        data, at, patterns, followed = self.data, self.at, self.patterns, self.followed
        which, numbers = array("H"), array("q")
        last = behind = self.last  # `behind` are the last four
        while True:
            tried = followed.get(behind, last)
            pattern = patterns[tried]
            fits = pattern.fits(data, at)
            if fits is None:
                tried, fits = self.any_fit(at)
                if fits is None:
                    break
                pattern = patterns[tried]
                followed[behind] = tried
            which.append(tried)
            numbers.append(number_at(fits[pattern.told]))
            self.skipped += pattern.memoized
            last = tried
            behind = (behind << 10 | tried) & 0xFFFFFFFFFF
            at = fits.end()
        if which:
            self.stack.append(Alike(which, numbers, self.firsts))
            self.last = last
        self.at = self.ended = at
        return bool(which)

    def any_fit(self, at: int) -> tuple[int, re.Match[bytes] | None]:
        """The first pattern that fits; none once so many have been tried in vain that reading is cheaper."""
        if self.tries_left > 0:
            for number, pattern in enumerate(self.patterns):
                if (fits := pattern.fits(self.data, at)) is not None:
                    return number, fits
            self.tries_left -= len(self.patterns)
        return 0, None


_SHORT, _INT, _UINT, _ULONG, _DOUBLE = (struct.Struct(form) for form in ("<H", "<i", "<I", "<Q", ">d"))
_STOP, _RECALL, _KEEP, _DICT, _SET_ITEMS = b".hq}u"
_KEYS: Final = {str, int}
_STEPS: Final[dict[int, Callable[[_Reader], object]]] = {
    ord(opcode): step
    for opcode, step in {
        "\x80": _Reader.byte,
        "\x95": lambda reader: reader.number(_ULONG),
        "}": lambda reader: reader.container({}),
        "]": lambda reader: reader.container([]),
        ")": lambda reader: reader.container(()),
        "(": _Reader.mark,
        "X": lambda reader: reader.text(reader.number(_UINT)),
        "\x8c": lambda reader: reader.text(reader.byte()),
        "\x8d": lambda reader: reader.text(reader.number(_ULONG)),
        "q": lambda reader: reader.keep(reader.byte()),
        "h": lambda reader: reader.stack.append(reader.memo[reader.byte()]),
        "r": lambda reader: reader.keep(reader.number(_UINT)),
        "\x94": lambda reader: reader.keep(len(reader.memo) + reader.skipped),
        "j": lambda reader: reader.stack.append(reader.memo[reader.number(_UINT)]),
        "K": lambda reader: reader.stack.append(reader.byte()),
        "M": lambda reader: reader.stack.append(reader.number(_SHORT)),
        "J": lambda reader: reader.stack.append(reader.number(_INT)),
        "\x8a": _Reader.long,
        "G": lambda reader: reader.stack.append(reader.number(_DOUBLE)),
        "N": lambda reader: reader.stack.append(None),
        "\x88": lambda reader: reader.stack.append(True),
        "\x89": lambda reader: reader.stack.append(False),
        "a": lambda reader: reader.append(reader.top(1)),
        "e": lambda reader: reader.append(reader.from_mark()),
        "s": lambda reader: reader.set_items(reader.top(2)),
        "u": lambda reader: reader.set_items(reader.from_mark()),
        "t": lambda reader: reader.container(tuple(reader.from_mark())),
        "\x85": lambda reader: reader.container(tuple(reader.top(1))),
        "\x86": lambda reader: reader.container(tuple(reader.top(2))),
        "\x87": lambda reader: reader.container(tuple(reader.top(3))),
    }.items()
}
