"""How foreign words reach a terminal: as text, never as orders to it."""

import sys


def plain(words: str) -> str:
    """One line in which nothing steers the terminal: what a log, a name or an edited file slipped in is shown as a mark."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)


def say(words: str, *, err: bool = False) -> None:
    """Print some lines; only their ends act."""
    out = sys.stderr if err else sys.stdout
    if out is not None:  # closed by whoever started us
        print("\n".join(map(plain, words.split("\n"))), file=out, flush=True)
