"""Records without their secrets: what redact.py does to JSON, done to records as they are. Pure.

A snapshot of 8,000 ranks is millions of values, most of them numbers, and the ranks' stacks say the same few hundred lines of code: what
nothing is to be hidden in stays the very same object, and each line of code is read once.
"""

import enum
from typing import Any, TypeVar

import msgspec

from rankpatrol.core.snapshot import Frame
from rankpatrol.evidence.redact import redact_json, redact_text, redact_texts, redact_value
from rankpatrol.evidence.secret_names import names_secret

T = TypeVar("T")
_NUMBERS = frozenset({int, float, bool, type(None)})


def clean(record: T) -> T:
    """The same record, redacted, and without the half characters that a path or a log may hold and UTF-8 cannot."""
    cleaned: T = _Cleaner().of(record, "")
    return cleaned


def clean_json(value: Any) -> Any:
    """The same for what is of no type of ours: JSON-able values, perhaps with records in them, which become such values too."""
    return redact_json(_encodable(msgspec.to_builtins(value)))


class _Cleaner:
    def __init__(self) -> None:
        self._frames: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}

    def of(self, value: Any, name: str) -> Any:
        """A value that stands under this name."""
        kind = type(value)
        if kind in _NUMBERS or isinstance(value, enum.Enum):
            return value
        if kind is str:
            return redact_value(value) if name and names_secret(name) else redact_text(_whole(value))
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if kind is dict:
            return self._same_or(
                value, {self.of(key, ""): self.of(member, key if type(key) is str else "") for key, member in value.items()}
            )
        if kind is tuple or kind is list:
            return self._list(value, name)
        return msgspec.convert(clean_json(value), kind)

    def _struct(self, value: msgspec.Struct) -> msgspec.Struct:
        changes = {}
        for name in value.__struct_fields__:
            member = getattr(value, name)
            if type(member) not in _NUMBERS and (new := self.of(member, name)) is not member:
                changes[name] = new
        return msgspec.structs.replace(value, **changes) if changes else value

    def _list(self, value: Any, name: str) -> Any:
        if not value:
            return value
        if all(type(item) is str for item in value):
            return self._same_or(value, redact_texts([_whole(item) for item in value], name))
        if type(value[0]) is Frame:
            return self._frames_of(value)
        return self._same_or(value, [self.of(item, name) for item in value])

    def _frames_of(self, frames: Any) -> Any:
        known = tuple(frames)
        if known not in self._frames:
            self._frames[known] = tuple(self._struct(frame) for frame in known)  # type: ignore[misc]  # a struct of the same kind
        return self._same_or(frames, self._frames[known])

    @staticmethod
    def _same_or(value: Any, new: Any) -> Any:
        return value if (made := type(value)(new)) == value else made


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return _whole(value)
        case dict():
            return {_encodable(key): _encodable(member) for key, member in value.items()}
        case list() | tuple():
            return [_encodable(item) for item in value]
        case _:
            return value
