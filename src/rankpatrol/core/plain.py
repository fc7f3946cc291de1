"""Foreign words as text: what reaches a terminal never steers it."""


def plain(words: str) -> str:
    """One line in which nothing steers the terminal: what a log, a name or an edited file slipped in is shown as a mark."""
    if words.isprintable():
        return words
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)
