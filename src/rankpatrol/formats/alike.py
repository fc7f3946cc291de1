"""Pickled dicts that differ in a few numbers alone, recognised by their bytes: some 60 times cheaper than reading each value.

A flight recorder repeats a handful of entries thousands of times: the same group, operation, sizes and code lines, with another
sequence, record id and other times. The bytes of the first are the pattern for the rest: equal byte for byte, but for these numbers.
"""

import re
from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache

# Numbers of a flight recorder's entry that change from one to the next and say nothing that is compared between ranks.
_COUNTS = frozenset({
    "record_id", "op_id", "seq_id", "collective_seq_id", "p2p_seq_id", "time_created_ns", "time_discovered_started_ns",
    "time_discovered_completed_ns", "duration_ms",
})  # fmt: skip
_WHOLE = rb"(?:K.|M..|J....|\x8a(?:\x08.{8}|\x07.{7}|\x06.{6}|\x05.{5}))"
_ANY_NUMBER = rb"(?:" + _WHOLE + rb"|N|G.{8})"
_KEPT = rb"(?:q.|r....)"
# Opcodes of plain values with the size of what follows them; None where that size stands there itself. See pickletools.
_SIZES = {
    **dict.fromkeys(b"}])(Naesut\x88\x89\x85\x86\x87\x94", 0),
    **dict.fromkeys(b"Kqh", 1), **dict.fromkeys(b"M", 2), **dict.fromkeys(b"Jrj", 4), **dict.fromkeys(b"G", 8),
}  # fmt: skip
_MEMOIZE = 0x94
_MOST_PATTERN_BYTES = 4096
_KNOWN_NUMBERS: dict[bytes, int] = {}


class Alike:
    """Dicts of one list that stand one behind the other: for each the index in `firsts` of the dict it is like, and its own number."""

    def __init__(self, which: "array[int]", numbers: "array[int]", firsts: list[dict[object, object]]) -> None:
        self.which, self.numbers, self.firsts = which, numbers, firsts


class Pattern:
    """The bytes of one dict, as a pattern for those that are like it. `memoized`: how many values each of them adds to the memo."""

    def __init__(self, pattern: bytes, memoized: int) -> None:
        compiled = _compiled(pattern)
        self.fits = compiled.match
        self.told = compiled.groupindex["number"]
        self.memoized = memoized

    @classmethod
    def learn(cls, data: bytes, number: str, memo: Mapping[int, object]) -> "Pattern | None":
        """The pattern of a whole dict whose value of `number` is told of each; None where its bytes hold something unusual."""
        tokens = list(_tokens(data)) if len(data) <= _MOST_PATTERN_BYTES else [None]
        if None in tokens:
            return None
        known = [token for token in tokens if token is not None]
        parts = list(_parts(known, number, memo, _recalled(known)))
        memoized = sum(token[0] == _MEMOIZE for token in known)
        return cls(b"".join(parts), memoized) if sum(b"?P<number>" in part for part in parts) == 1 else None


def _parts(tokens: list[bytes], number: str, memo: Mapping[int, object], recalled: set[bytes]) -> Iterator[bytes]:
    """The pattern of each token: a counting number is any number, a value is kept under any index, all else is as it stands."""
    key: object = None
    for token in tokens:
        opcode, argument = token[:1], token[1:]
        if key in _COUNTS and opcode in b"KMJ\x8aNG":
            yield b"(?P<number>" + _WHOLE + b")" if key == number and opcode in b"KMJ\x8a" else _ANY_NUMBER
        elif opcode in b"qr":
            name = _name(argument)
            yield b"(?:q(?P<q%b>.)|r(?P<r%b>.{4}))" % (name, name) if argument in recalled else _KEPT
        elif opcode in b"hj" and argument in recalled:
            name = _name(argument)
            yield b"(?:h(?P=q%b)|j(?P=r%b))" % (name, name)
        else:
            yield re.escape(token)
        if opcode not in b"qr\x94":
            key = _text(token, memo)


def _recalled(tokens: list[bytes]) -> set[bytes]:
    """The indices under which a value of this very dict is kept and recalled again."""
    kept: set[bytes] = set()
    recalled: set[bytes] = set()
    for token in tokens:
        if token[:1] in b"qr":
            kept.add(token[1:])
        elif token[:1] in b"hj" and token[1:] in kept:
            recalled.add(token[1:])
    return recalled


def _name(argument: bytes) -> bytes:
    return b"%d" % int.from_bytes(argument, "little")


@lru_cache(maxsize=4096)
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


def number_at(told: bytes) -> int:
    """The number in an opcode of a whole number with its argument."""
    known = _KNOWN_NUMBERS.get(told)
    if known is None:
        if len(_KNOWN_NUMBERS) > 1 << 17:
            _KNOWN_NUMBERS.clear()
        argument = told[2:] if told[:1] == b"\x8a" else told[1:]
        known = _KNOWN_NUMBERS[told] = int.from_bytes(argument, "little", signed=told[:1] in b"J\x8a")
    return known


def _tokens(data: bytes) -> Iterator[bytes | None]:
    """Each opcode with its argument; None for one that is not known here, and the end."""
    at = 0
    while at < len(data):
        size = _size(data, at)
        if size is None:
            yield None
            return
        yield data[at : at + 1 + size]
        at += 1 + size


def _size(data: bytes, at: int) -> int | None:
    match data[at : at + 1]:
        case b"X":
            return 4 + int.from_bytes(data[at + 1 : at + 5], "little")
        case b"\x8c" | b"\x8a":
            return 1 + data[at + 1]
    return _SIZES.get(data[at])


def _text(token: bytes, memo: Mapping[int, object]) -> object:
    """The text that a token pushes; None for anything else."""
    match token[:1]:
        case b"X":
            return token[5:].decode("utf-8", "replace")
        case b"\x8c":
            return token[2:].decode("utf-8", "replace")
        case b"h" | b"j":
            value = memo.get(int.from_bytes(token[1:], "little"))
            return value if isinstance(value, str) else None
    return None
