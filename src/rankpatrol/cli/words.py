"""How foreign words reach a terminal: as text, never as orders to it."""

import sys
from collections.abc import Callable

from rankpatrol.core.plain import plain

__all__ = ["plain", "say", "say_json"]


def say(words: str, *, err: bool = False) -> None:
    """Print some lines; only their ends act."""
    _print(words, err=err)


def say_json(document: object, *, indent: int = 0) -> None:
    """Print one JSON document, in one line unless `indent` is given. What would steer a terminal is written in JSON's own escapes."""
    import msgspec  # ruff: ignore[PLC0415] - who only says something does not pay for it

    content = msgspec.json.encode(document)
    text = (msgspec.json.format(content, indent=indent) if indent else content).decode()
    _print(text, err=False, clean=_escaped)


def _print(text: str, *, err: bool, clean: Callable[[str], str] = plain) -> None:
    out = sys.stderr if err else sys.stdout
    if out is not None:  # closed by whoever started us
        print("\n".join(map(clean, text.split("\n"))), file=out, flush=True)


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    import json  # ruff: ignore[PLC0415] - the same

    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)
