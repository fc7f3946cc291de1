"""Wrapping the training's functions so that it cannot tell: same result, same exceptions, same name."""

from __future__ import annotations

import contextlib
import functools

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def quietly(work: Callable[..., None]) -> Callable[..., None]:
    """The same work, but what goes wrong in it is nobody's concern."""

    @functools.wraps(work)
    def quiet(*args: Any) -> None:
        with contextlib.suppress(Exception):  # a mark that fails must not end a training
            work(*args)

    return quiet


def wrap(owner: Any, name: str, *, before: Callable[..., None], ended: Callable[..., None]) -> None:
    """Call `before(args, keywords)`, the function, and `ended()` however it ended. Both must be quiet."""
    wrapped = getattr(owner, name, None)
    if wrapped is None:
        return

    @functools.wraps(wrapped)
    def marked(*args: Any, **keywords: Any) -> Any:
        before(args, keywords)
        try:
            return wrapped(*args, **keywords)
        finally:
            ended()

    setattr(owner, name, marked)


def follow(owner: Any, name: str, returned: Callable[..., None]) -> None:
    """Call the function, and `returned(result, args, keywords)` where it returned. It must be quiet."""
    wrapped = getattr(owner, name, None)
    if wrapped is None:
        return

    @functools.wraps(wrapped)
    def marked(*args: Any, **keywords: Any) -> Any:
        result = wrapped(*args, **keywords)
        returned(result, args, keywords)
        return result

    setattr(owner, name, marked)
