"""Recordings of one moment, as files would tell them, made from rounds of made-up ranks."""

import msgspec

from rankpatrol.core.rings import Recordings
from rankpatrol.formats.rings import Calls, ring_of

NOW_S = 1.8e9


def told(round_, *, members=None, ages_s=None, timeout_s=600.0, unread=None):
    """One dump a rank; `ages_s` is how long each rank had waited when its file was written, where it waits."""
    calls = Calls()
    rings = {}
    for rank, recording in round_.items():
        entries = tuple(msgspec.structs.replace(entry, timeout_s=timeout_s) for entry in recording.entries)
        known = {name: ranks for name, ranks in (members or {}).items() if rank in ranks}
        ring = ring_of(msgspec.structs.replace(recording, entries=entries, members=known), calls)
        waits = any(not entry.retired for entry in entries) and ages_s is not None and rank in ages_s
        rings[rank] = msgspec.structs.replace(ring, pending_since_unix_s=NOW_S - ages_s[rank] if waits else None)
    return Recordings(calls=tuple(calls.known), rings=rings, written_unix_s=dict.fromkeys(rings, NOW_S), unread=unread or {})
