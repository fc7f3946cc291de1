"""How foreign words reach a terminal: as text, never as orders to it."""

import json

import click
import msgspec

from rankpatrol.core.plain import plain

__all__ = ["plain", "say", "say_json"]


def say(words: str, *, err: bool = False) -> None:
    """Print some lines; only their ends act."""
    click.echo("\n".join(map(plain, words.split("\n"))), err=err)


def say_json(document: object, *, indent: int = 0) -> None:
    """Print one JSON document, in one line unless `indent` is given. What would steer a terminal is written in JSON's own escapes."""
    content = msgspec.json.encode(document)
    text = (msgspec.json.format(content, indent=indent) if indent else content).decode()
    click.echo("\n".join(map(_escaped, text.split("\n"))))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)
