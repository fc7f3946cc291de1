"""Foreign words as plain text."""


def plain(words: str) -> str:
    """One line in which nothing steers a terminal or spoils a picture: what a log or an edited file slipped in is shown as a mark."""
    if words.isprintable():
        return words
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)
