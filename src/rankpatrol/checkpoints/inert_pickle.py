"""What a pickle describes, as inert values. Nothing is imported, called or built: an object is its class's name, arguments and state.

See pickletools in the standard library.
"""

import pickletools
import warnings
from collections.abc import Callable, Iterator
from typing import Final

from rankpatrol.core.records import Missing, Record

_MOST_OPCODES: Final = 20_000_000


class Named(Record, frozen=True):
    """The name of a class or function, which was not looked up."""

    module: str
    name: str


class Pairs:
    """A dict as it was written: pairs in order. Keys may be anything, so they are not hashed but for text."""

    __slots__ = ("by_text", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []
        self.by_text: dict[str, object] = {}

    def put(self, key: object, value: object) -> None:
        self.pairs.append((key, value))
        if isinstance(key, str):
            self.by_text[key] = value


class Thing:
    """An object that would have been built: whose, from which arguments, with which state, and what was put into it."""

    __slots__ = ("args", "items", "listed", "of", "state")

    def __init__(self, of: object, args: object) -> None:
        self.of, self.args = of, args
        self.state: object = None
        self.items = Pairs()
        self.listed: list[object] = []

    def is_a(self, name: str) -> bool:
        """Whether its class bears this name, in whatever module."""
        return isinstance(self.of, Named) and self.of.name == name


class CutShort(Record, frozen=True):
    """The pickle ends before its end mark: at which of its bytes."""

    offset_bytes: int


class Read(Record, frozen=True):
    """What a pickle holds, and the bytes up to its end."""

    value: object
    length_bytes: int


class _Unreadable(Exception):
    """The pickle does something that no pickler writes."""


def read_pickle(data: bytes) -> Read | Missing | CutShort:
    """The value that starts `data`; CutShort where its end is not there; Missing with the reason where it cannot be followed."""
    reader = _Reader()
    position = 0
    try:
        with warnings.catch_warnings(action="ignore"):
            for count, (opcode, argument, at) in enumerate(pickletools.genops(data)):
                position = at or 0
                if count >= _MOST_OPCODES:
                    return Missing(f"it has more than {_MOST_OPCODES} opcodes")
                reader.step(opcode.name, argument)
    except (_Unreadable, IndexError, KeyError) as problem:
        return Missing(f"it cannot be followed at its byte {position} ({type(problem).__name__.strip('_').lower()})")
    except ValueError as problem:
        # pickletools says so where bytes run out in or before an opcode.
        if "exhausted" in str(problem) or "but only" in str(problem) or "not enough data" in str(problem) or "newline" in str(problem):
            return CutShort(len(data))
        return Missing(f"it cannot be read after its byte {position}")
    if len(reader.stack) != 1:
        return Missing("it ends with more or less than one value")
    return Read(reader.stack[0], position + 1)


def look_up(value: object, *path: str) -> object:
    """What lies under text keys or attribute names, one below the other; None where it is not there."""
    for name in path:
        found: object = None
        for pairs in _parts(value):
            if name in pairs.by_text:
                found = pairs.by_text[name]
        value = found
    return value


def pairs_of(value: object) -> Iterator[tuple[object, object]]:
    """All pairs of a dict, an ordered dict or an object's state."""
    for pairs in _parts(value):
        yield from pairs.pairs


def _parts(value: object) -> tuple[Pairs, ...]:
    if isinstance(value, Pairs):
        return (value,)
    if isinstance(value, Thing):
        return (value.items, value.state) if isinstance(value.state, Pairs) else (value.items,)
    return ()


class _Reader:
    """The stack and memo of an unpickler."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def step(self, name: str, argument: object) -> None:
        step = _STEPS.get(name)
        if step is not None:
            step(self, argument)
        elif argument is None:
            raise _Unreadable(name)
        elif name not in _IGNORED:
            self.stack.append(argument)

    def from_mark(self) -> list[object]:
        at = self.marks.pop()
        if at > len(self.stack):
            raise _Unreadable
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def take(self, count: int) -> tuple[object, ...]:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise _Unreadable
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        return values

    def keep(self, argument: object) -> None:
        self.memo[argument if isinstance(argument, int) else len(self.memo)] = self.stack[-1]

    def recall(self, argument: object) -> None:
        if not isinstance(argument, int):
            raise _Unreadable
        self.stack.append(self.memo[argument])

    def drop(self, _: object) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def drop_to_mark(self, _: object) -> None:
        self.from_mark()

    def name(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(Named(module, name))

    def name_from_stack(self, _: object) -> None:
        module, name = self.take(2)
        self.stack.append(Named(str(module), str(name)))

    def build(self, _: object) -> None:
        target, state = self.take(2)
        if isinstance(target, Thing):
            target.state = state
        self.stack.append(target)

    def extend(self, values: list[object] | tuple[object, ...]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Thing):
            target.listed.extend(values)
        else:
            raise _Unreadable

    def set_items(self, values: list[object] | tuple[object, ...]) -> None:
        target = self.stack[-1]
        pairs = target.items if isinstance(target, Thing) else target
        if not isinstance(pairs, Pairs) or len(values) % 2:
            raise _Unreadable
        for key, value in zip(values[::2], values[1::2], strict=True):
            pairs.put(key, value)

    def dict_from_mark(self, _: object) -> None:
        values = self.from_mark()
        self.stack.append(Pairs())
        self.set_items(values)

    def made(self, count: int) -> None:
        """An object from its class and arguments, which are the last values of the stack."""
        of, *args = self.take(count)
        self.stack.append(Thing(of, args[0]))

    def made_from_mark(self, argument: object) -> None:
        values = self.from_mark()
        if argument is not None:
            module, _, name = str(argument).partition(" ")
            values = [Named(module, name), *values]
        self.stack.append(Thing(values[0], tuple(values[1:])))


_IGNORED: Final = {"PROTO", "FRAME"}
_STEPS: Final[dict[str, Callable[[_Reader, object], None]]] = {
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Reader.keep),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Reader.recall),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda r, _: r.made(2)),
    **dict.fromkeys(("INST", "OBJ"), _Reader.made_from_mark),
    **dict.fromkeys(("LIST", "FROZENSET"), lambda r, _: r.stack.append(r.from_mark())),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda r, _: r.stack.append([])),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda r, _: r.extend(r.from_mark())),
    **dict.fromkeys(("STOP", "READONLY_BUFFER"), lambda _, __: None),
    "NEWOBJ_EX": lambda r, _: r.made(3),
    "BUILD": _Reader.build,
    "GLOBAL": _Reader.name,
    "STACK_GLOBAL": _Reader.name_from_stack,
    "PERSID": lambda r, argument: r.stack.append(Thing(None, argument)),
    "BINPERSID": lambda r, _: r.stack.append(Thing(None, r.take(1)[0])),
    "MARK": lambda r, _: r.marks.append(len(r.stack)),
    "POP": _Reader.drop,
    "POP_MARK": _Reader.drop_to_mark,
    "DUP": lambda r, _: r.stack.append(r.stack[-1]),
    "APPEND": lambda r, _: r.extend(r.take(1)),
    "SETITEM": lambda r, _: r.set_items(r.take(2)),
    "SETITEMS": lambda r, _: r.set_items(r.from_mark()),
    "DICT": _Reader.dict_from_mark,
    "EMPTY_DICT": lambda r, _: r.stack.append(Pairs()),
    "TUPLE": lambda r, _: r.stack.append(tuple(r.from_mark())),
    "EMPTY_TUPLE": lambda r, _: r.stack.append(()),
    "TUPLE1": lambda r, _: r.stack.append(r.take(1)),
    "TUPLE2": lambda r, _: r.stack.append(r.take(2)),
    "TUPLE3": lambda r, _: r.stack.append(r.take(3)),
    "NONE": lambda r, _: r.stack.append(None),
    "NEWTRUE": lambda r, _: r.stack.append(True),
    "NEWFALSE": lambda r, _: r.stack.append(False),
}
