"""Numbers of hundreds of digits: no tool prints one, and Python refuses to read those of more than 4,300."""

import re

_MOST_DIGITS = 400
_LONG = re.compile(rf"\d{{{_MOST_DIGITS},}}")


def without_long_numbers(text: str) -> str:
    """The same text with each such number cut down to its first digits."""
    if len(text) < _MOST_DIGITS:
        return text
    return _LONG.sub(lambda number: number[0][:18], text)
