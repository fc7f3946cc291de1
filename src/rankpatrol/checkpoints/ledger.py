"""What earlier looks found: a file that did not change is not read again, and one without checksums is compared with its first look.

The comparison is by CRC-32 of each 64 MiB: it finds what disks and networks do to bytes, tells where, and costs no more than reading
(`checksum`; on one core of the standard library sha1 makes 1.9 GB/s, sha256 1.8, blake2b 1.0). It is no proof against somebody who forges
a file.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

import msgspec

from rankpatrol.checkpoints.opened import OpenedFile
from rankpatrol.checkpoints.report import CheckpointReport
from rankpatrol.core.records import Record
from rankpatrol.system.files import write_atomic

CHUNK_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 256 << 20

# Inode, size, and time of the last write in nanoseconds.
Identity = tuple[int, int, int]


class Known(Record, frozen=True, kw_only=True):
    """What is known of one file or directory: as it was, how closely it was looked at, and what came of it."""

    identity: Identity
    report: CheckpointReport
    content: bool
    numbers: bool = False
    crcs: tuple[int, ...] = ()
    first_unix_s: float = 0.0


class _Book(Record, frozen=True):
    version: int
    known: dict[str, Known]


class Ledger:
    """Remembers by path; in a file where one is given. A file that cannot be read is started anew: nothing is lost but time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        self._changed = False
        if path is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                if path.stat().st_size <= _MOST_BYTES:
                    book = msgspec.json.decode(path.read_bytes(), type=_Book)
                    self._known = dict(book.known) if book.version == 1 else {}

    @property
    def lasting(self) -> bool:
        """Whether later looks will know: only then are first looks worth hashes."""
        return self._path is not None

    def known(self, path: Path) -> Known | None:
        """What is known of a path."""
        return self._known.get(_key(path))

    def learn(self, path: Path, known: Known) -> None:
        """Remember, until `save`."""
        with self._lock:
            self._known[_key(path)] = known
            self._changed = True

    def forget(self, path: Path) -> None:
        """Nothing is known of this path any more."""
        with self._lock:
            self._changed = self._known.pop(_key(path), None) is not None or self._changed

    def save(self) -> bool:
        """Write the file where there is one and something is new; True where that was done. Raises OSError."""
        with self._lock:
            if self._path is None or not self._changed:
                return False
            kept = {path: known for path, known in self._known.items() if os.path.lexists(path)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, msgspec.json.encode(_Book(1, kept)))
            self._changed = False
            return True


def first_look(file: OpenedFile) -> tuple[int, ...]:
    """The CRC-32 of each 64 MiB of a file."""
    return tuple(file.crc32_at(start, min(CHUNK_BYTES, file.size_bytes - start)) for start in range(0, file.size_bytes, CHUNK_BYTES))


def _key(path: Path) -> str:
    return os.fsencode(path.absolute()).decode("utf-8", "backslashreplace")
