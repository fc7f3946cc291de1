"""Foreign words in rich's texts and tables."""

from rich.text import Text

from rankpatrol.cli.words import plain


def shown(words: str, style: str = "") -> Text:
    """One line, plain: rich itself lets escape sequences pass."""
    return Text(plain(words), style=style)
