"""How foreign words reach a terminal: as text, never as orders to it."""

import click

from rankpatrol.core.words import plain

__all__ = ["plain", "say"]


def say(words: str, *, err: bool = False) -> None:
    """Print some lines; only their ends act."""
    click.echo("\n".join(map(plain, words.split("\n"))), err=err)
