"""Counts in words."""


def say_count(number: int, one: str, many: str | None = None) -> str:
    """Write "1 rank" or "2 ranks"; `many` where the plural is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
