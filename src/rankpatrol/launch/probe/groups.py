"""The process groups this rank is a member of, as torch's own tables hold them (`_world`, the same from 2.0 on)."""

from __future__ import annotations

import inspect
import json

from . import layout

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .sheet import Sheet

_ROOM_BYTES = layout.AREA_BYTES - 4


class GroupBook:
    """Writes the groups down whenever there are others than before."""

    def __init__(self, c10d: ModuleType, sheet: Sheet) -> None:
        self._world, self._sheet = c10d._world, sheet
        self._timeouts_s: dict[str, float] = {}
        self._written: tuple[str, ...] = ()
        self._signature = inspect.signature(c10d._new_process_group_helper)

    def note_timeout(self, made: tuple[Any, ...], args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """One group was made: its time-out stands in the call alone, for backends differ in whether and where they tell it."""
        timeout = self._signature.bind(*args, **keywords).arguments.get("timeout")
        name = self._world.pg_names.get(made[0])
        if name is not None and timeout is not None:
            self._timeouts_s[name] = timeout.total_seconds()

    def write(self) -> None:
        """Groups are made by the thousand on large jobs, of which a rank is a member of few: nothing new, nothing done."""
        names = tuple(self._world.pg_names.values())
        if names != self._written:
            self._sheet.write_groups(_encode([self._entry(group) for group in list(self._world.pg_map)]))
            self._written = names

    def _entry(self, group: Any) -> dict[str, Any]:
        name = self._world.pg_names[group]
        return {
            "name": full_name(name, getattr(group, "group_desc", "")),
            "backend": str(self._world.pg_map[group][0]),
            "ranks": compact(sorted(self._world.pg_group_ranks[group])),
            "timeout_s": self._timeouts_s.get(name),
        }


def full_name(name: str, description: str) -> str:
    """The name under which formats/flight_recorder.py knows the group, so that marks and recordings can be laid side by side."""
    if description == "default_pg":
        return description
    return name if description in {"", "undefined"} else name + ":" + description


def compact(ranks: list[int]) -> list[int] | dict[str, int]:
    """Evenly spaced ranks (most groups of most jobs) as first, count and step; others as they are."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = len(ranks) > 0 and all(after - before == step for before, after in zip(ranks, ranks[1:]))  # ruff: ignore[B905, RUF007] - 3.10
    return {"first": ranks[0], "count": len(ranks), "step": step} if even else ranks


def _encode(entries: list[dict[str, Any]]) -> bytes:
    """The groups as JSON; the last ones are left out where they do not fit."""
    dump: Callable[..., str] = json.dumps
    words = [dump(entry, separators=(",", ":")).encode() for entry in entries]
    while sum(map(len, words)) + len(words) + 1 > _ROOM_BYTES:
        words.pop()
    return b"[" + b",".join(words) + b"]"
