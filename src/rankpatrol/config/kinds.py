"""How a setting is written in a TOML file, in the environment and on the command line, and how it is shown."""

import math
from pathlib import Path
from typing import Any, Protocol

from rankpatrol.core.durations import parse_duration_s
from rankpatrol.core.errors import UsageProblem
from rankpatrol.core.records import Record
from rankpatrol.metrics.address import Address


class Kind(Protocol):
    """One kind of value."""

    @property
    def words(self) -> str:
        """What can be written, in a few words."""
        ...

    @property
    def metavar(self) -> str:
        """The same in one word, for a command's help."""
        ...

    def from_text(self, text: str) -> Any:
        """The value of a word. Raises UsageProblem."""
        ...

    def from_toml(self, value: Any) -> Any:
        """The value that a TOML file holds. Raises UsageProblem."""
        ...

    def to_toml(self, value: Any) -> str:
        """The value as a file would have it."""
        ...


class Choice(Record, frozen=True):
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return " | ".join(self.choices)

    @property
    def metavar(self) -> str:
        return f"[{'|'.join(self.choices)}]"

    def from_text(self, text: str) -> str:
        if text not in self.choices:
            raise UsageProblem(f"{text!r} is none of {', '.join(self.choices)}", help=f"Write one of {', '.join(self.choices)}.")
        return text

    def from_toml(self, value: Any) -> str:
        return self.from_text(_text(value, f"one of {', '.join(self.choices)}, in quotes"))

    def to_toml(self, value: str) -> str:
        return _quoted(value)


class Duration(Record, frozen=True):
    """A time with its unit, `least_s` at least and `most_s` at most; kept in seconds."""

    words: str = "a duration: 90s, 3m, 1h30m"
    metavar: str = "DURATION"
    least_s: float = 0.0
    most_s: float = math.inf

    def from_text(self, text: str) -> float:
        seconds = parse_duration_s(text)
        if seconds < self.least_s:
            raise UsageProblem(f"{text} is too short", help=f"Write {say_exactly(self.least_s)} or more.")
        if seconds > self.most_s:
            raise UsageProblem(f"{text} is too long", help=f"Write {say_exactly(self.most_s)} or less.")
        return seconds

    def from_toml(self, value: Any) -> float:
        return self.from_text(_text(value, 'a number with its unit, in quotes: "180s", "3m" or "1h30m"'))

    def to_toml(self, value: float) -> str:
        return _quoted(say_exactly(value))


class Folder(Record, frozen=True):
    """A path; `~` is the home. A relative one starts where the command is typed."""

    words: str = "a folder"
    metavar: str = "FOLDER"

    def from_text(self, text: str) -> Path:
        if not text or "\0" in text:
            raise UsageProblem("an empty word is no folder", help="Write a path, or leave the setting out.")
        try:
            return Path(text).expanduser()
        except RuntimeError as problem:
            raise UsageProblem(f"{text!r}: {problem}", help="Write the whole path.") from problem

    def from_toml(self, value: Any) -> Path:
        return self.from_text(_text(value, "a path, in quotes"))

    def to_toml(self, value: Path) -> str:
        return _quoted(str(value))


class Listening(Record, frozen=True):
    """An address and a port to listen on; kept as it was written."""

    words: str = "ADDR:PORT"
    metavar: str = "ADDR:PORT"

    def from_text(self, text: str) -> str:
        return str(Address.parse(text))

    def from_toml(self, value: Any) -> str:
        return self.from_text(_text(value, 'an address and a port, in quotes: "127.0.0.1:9464"'))

    def to_toml(self, value: str) -> str:
        return _quoted(value)


class Count(Record, frozen=True):
    """A number from 0 on."""

    words: str = "a number from 0 on"
    metavar: str = "N"

    def from_text(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise UsageProblem(f"{text!r} is no number from 0 on", help="Write digits alone, such as 3.")
        return int(text)

    def from_toml(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageProblem(f"{value!r} is no number from 0 on", help="Write digits without quotes, such as 3.")
        return value

    def to_toml(self, value: int) -> str:
        return str(value)


_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Flag(Record, frozen=True):
    """On or off."""

    words: str = "true or false"
    metavar: str = ""

    def from_text(self, text: str) -> bool:
        if text.lower() not in (*_YES, *_NO):
            raise UsageProblem(f"{text!r} is neither on nor off", help=f"Write one of {', '.join((*_YES, *_NO))}.")
        return text.lower() in _YES

    def from_toml(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise UsageProblem(f"{value!r} is neither true nor false", help="Write true or false, without quotes.")
        return value

    def to_toml(self, value: bool) -> str:
        return "true" if value else "false"


def say_exactly(seconds: float) -> str:
    """A duration in one unit, such that reading it gives it back."""
    for unit, unit_s in (("h", 3600.0), ("m", 60.0)):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def _text(value: Any, wanted: str) -> str:
    if not isinstance(value, str):
        raise UsageProblem(f"{value!r} is no text", help=f"Write {wanted}.")
    return value


def _quoted(text: str) -> str:
    """A TOML basic string (toml.io/en/v1.0.0, String)."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in plain) + '"'
