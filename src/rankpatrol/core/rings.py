"""Flight recordings of many ranks, kept small: equal entries are kept once, and each rank holds their numbers in columns."""

from array import array

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Collective, GroupStatus


class Ring(Record, frozen=True, kw_only=True):
    """One rank's flight recorder, oldest entry first: for each the number of its call, and its sequence within its group.

    `members` holds the global ranks of each group where the dump tells them; `rank` is what the dump says of itself, if it does;
    `pending_since_unix_s` is when the oldest operation that is not over was enqueued, by that rank's clock.
    """

    version: str
    rank: int | None
    members: dict[str, tuple[int, ...]]
    status: dict[str, GroupStatus]
    pending_since_unix_s: float | None
    calls: array  # type: ignore[type-arg]  # array[int] can be written from Python 3.12 on
    sequences: array  # type: ignore[type-arg]


class Recordings(Record, frozen=True, kw_only=True):
    """The rings of a job's ranks, and the calls that their numbers mean (with sequence 0).

    `written_unix_s` is when a rank's file was last written, where it came as a file; `unread` are ranks whose file is there but could
    not be read, with the reason: these are not absent.
    """

    calls: tuple[Collective, ...]
    rings: dict[int, Ring]
    written_unix_s: dict[int, float] = msgspec.field(default_factory=dict)
    unread: dict[int, str] = msgspec.field(default_factory=dict)
