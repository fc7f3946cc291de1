"""The storages that a torch pickle names, found by walking its opcodes. Nothing is imported, called or built.

See pickletools in the standard library, and the persistent ids that torch.serialization writes.
"""

import pickletools
import warnings
from collections.abc import Callable
from typing import Final

from rankpatrol.core.records import Missing, Record

MOST_PICKLE_BYTES = 64 << 20
_MOST_OPCODES = 5_000_000
_LONGEST_KEY = 200

# Bytes an element takes, by the storage class that torch.save names. See torch.storage._dtype_to_storage_type_map.
_WIDTH_BYTES: Final = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2,
    "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1,
    "ComplexDoubleStorage": 16, "ComplexFloatStorage": 8,
    "QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1,
    "UntypedStorage": 1,
}  # fmt: skip


class PickledStorage(Record, frozen=True):
    """One storage and the bytes it must have."""

    key: str
    size_bytes: int
    kind: str


class PickleWalk(Record, frozen=True):
    """All storages a pickle names, and the bytes up to its end."""

    storages: tuple[PickledStorage, ...]
    length_bytes: int


class _Unwalkable(Exception):
    """The pickle does something that the walk cannot follow."""


class _Global(Record, frozen=True):
    module: str
    name: str


class _Opaque:
    """Any object that is no part of a storage's id."""


_OPAQUE: Final = _Opaque()
_MARK: Final = _Opaque()

_Value = str | int | _Global | tuple[object, ...] | _Opaque


def walk(data: bytes) -> PickleWalk | Missing:
    """Every storage named in the pickle that starts `data`, or why that cannot be told."""
    machine = _Machine()
    position = 0
    try:
        # pickletools warns of odd escapes in old strings; they are no matter here.
        with warnings.catch_warnings(action="ignore"):
            for count, (opcode, argument, at) in enumerate(pickletools.genops(data)):
                position = at or 0
                if count >= _MOST_OPCODES:
                    return Missing(f"it has more than {_MOST_OPCODES} opcodes")
                machine.step(opcode, argument)
    except _Unwalkable as problem:
        return Missing(f"{problem}, at its byte {position}")
    except ValueError:
        return Missing(f"it cannot be read after its byte {position}")
    return PickleWalk(tuple(machine.storages.values()), position + 1)


class _Machine:
    """The stack and memo of an unpickler, holding just the values that make up persistent ids."""

    def __init__(self) -> None:
        self.storages: dict[str, PickledStorage] = {}
        self._stack: list[_Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, _Value] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        """Do what one opcode does to stack and memo."""
        handle = _HANDLERS.get(opcode.name)
        if handle is None:
            self._generic(opcode, argument)
        else:
            handle(self, argument)

    def keep(self, argument: object) -> None:
        self._memo[len(self._memo) if argument is None else _whole(argument)] = self._top()

    def recall(self, argument: object) -> None:
        index = _whole(argument)
        if index not in self._memo:
            raise _Unwalkable("it recalls a value that it never kept")
        self._stack.append(self._memo[index])

    def mark(self, _: object) -> None:
        self._marks.append(len(self._stack))
        self._stack.append(_MARK)

    def tuple_from_mark(self, _: object) -> None:
        self._stack.append(_storage_id_or_opaque(self._pop_to_mark()))

    def name_global(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self._stack.append(_Global(module, name))

    def name_global_from_stack(self, _: object) -> None:
        name, module = self._pop(), self._pop()
        self._stack.append(_Global(module, name) if isinstance(module, str) and isinstance(name, str) else _OPAQUE)

    def persistent_object(self, _: object) -> None:
        self._note(self._pop())
        self._stack.append(_OPAQUE)

    def persistent_text(self, _: object) -> None:
        raise _Unwalkable("it names an object by a text id, which torch.save never does")

    def repeat(self, _: object) -> None:
        self._stack.append(self._top())

    def drop(self, _: object) -> None:
        if self._stack and self._stack[-1] is _MARK:
            self._pop_to_mark()
        else:
            self._pop()

    def _generic(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        """What any other opcode takes off and puts on the stack, as pickletools documents it."""
        before = opcode.stack_before
        if pickletools.markobject in before:
            self._pop_to_mark()
            before = before[: before.index(pickletools.markobject)]
        for _ in before:
            self._pop()
        plain = argument if isinstance(argument, str | int) and not opcode.name.startswith(("EXT", "INST")) else _OPAQUE
        self._stack.extend(plain for _ in opcode.stack_after)

    def _note(self, found: _Value) -> None:
        match found:
            case ("storage", _Global(module, name), str(key), str(location), int(count)):
                pass
            case _:
                raise _Unwalkable("it names an object by an id that is no storage")
        width = _WIDTH_BYTES.get(name)
        if width is None or module.partition(".")[0] != "torch":
            raise _Unwalkable(f"it names a storage of unknown type {ascii(f'{module}.{name}')[:80]}")
        if not key.isascii() or not key.isprintable() or len(key) > _LONGEST_KEY or not 0 <= count < 1 << 60:
            raise _Unwalkable("it names a storage by an impossible key or size")
        if location != "meta":
            self.storages.setdefault(key, PickledStorage(key, count * width, name))

    def _top(self) -> _Value:
        if not self._stack or self._stack[-1] is _MARK:
            raise _Unwalkable("it takes a value from an empty stack")
        return self._stack[-1]

    def _pop(self) -> _Value:
        top = self._top()
        self._stack.pop()
        return top

    def _pop_to_mark(self) -> list[_Value]:
        if not self._marks:
            raise _Unwalkable("it goes back to a mark that it never set")
        mark = self._marks.pop()
        items = self._stack[mark + 1 :]
        del self._stack[mark:]
        return items


_HANDLERS: Final[dict[str, Callable[[_Machine, object], None]]] = {
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"), _Machine.keep),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), _Machine.recall),
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_from_mark,
    "GLOBAL": _Machine.name_global,
    "STACK_GLOBAL": _Machine.name_global_from_stack,
    "BINPERSID": _Machine.persistent_object,
    "PERSID": _Machine.persistent_text,
    "DUP": _Machine.repeat,
    "POP": _Machine.drop,
}


def _whole(argument: object) -> int:
    if not isinstance(argument, int):
        raise _Unwalkable("it keeps a value under no number")
    return argument


def _storage_id_or_opaque(items: list[_Value]) -> _Value:
    """A flat tuple as long as a storage's id; anything else is forgotten, so that no nesting can grow."""
    # The sixth is the old layout's view of a storage: nothing, since torch 0.4.
    if len(items) in {5, 6} and all(isinstance(item, str | int | _Global) for item in items[:5]):
        return tuple(items[:5])
    return _OPAQUE
