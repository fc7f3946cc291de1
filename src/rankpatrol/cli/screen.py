"""Foreign words in rich's texts and tables."""

from rich.console import Console
from rich.text import Text

from rankpatrol.cli.words import plain

_UNBROKEN_COLUMNS = 1000


def shown(words: str, style: str = "") -> Text:
    """One line, plain: rich itself lets escape sequences pass."""
    return Text(plain(words), style=style)


def page() -> Console:
    """Where tables and lines are printed. Off a terminal nothing sets a width, and whoever greps wants one line a row."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _UNBROKEN_COLUMNS
    return console
