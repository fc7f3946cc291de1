"""`NamedTuple` without the module typing, which takes longer to import than all the rest of a binding: a rank waits for it."""

from __future__ import annotations

import collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # ruff: ignore[PLC0414] - handed on
else:
    _OWN = frozenset({"__module__", "__qualname__", "__annotations__", "__dict__", "__weakref__"})

    class _Maker(type):
        """Turns a class body of annotated fields into a named tuple."""

        def __new__(cls, name: str, bases: tuple, body: dict) -> type:
            """As typing's does; annotations are not evaluated (PEP 563)."""
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body["__annotations__"])
            defaults = [body[field] for field in fields if field in body]
            made = collections.namedtuple(name, fields, defaults=defaults, module=body["__module__"])  # ruff: ignore[PYI024] - see above
            made.__annotations__ = body["__annotations__"]
            for word, what in body.items():
                if word not in _OWN and word not in fields:
                    setattr(made, word, what)
            return made

    class NamedTuple(metaclass=_Maker):
        """What a class of annotated fields derives from."""
