"""A file under check: opened without waiting, read by offset, never written."""

import contextlib
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rankpatrol.checkpoints.checksum import crc32
from rankpatrol.checkpoints.pace import Pace
from rankpatrol.core.errors import BadInput, NoPermission, PatrolError

_CHUNK_BYTES = 1 << 20


class _Reader(threading.local):
    """One buffer a thread, used again and again: a fresh one for each of many small ranges takes as long as to read them.

    A byte lies as far behind the start of a page here as in the file: the kernel copies up to five times slower where that differs.
    """

    def __init__(self) -> None:
        self._pages = memoryview(mmap.mmap(-1, _CHUNK_BYTES))

    def buffer_for(self, offset: int, length: int) -> memoryview:
        """Room for the bytes of a file from `offset` on, as far as it reaches."""
        start = offset % mmap.PAGESIZE
        return self._pages[start : start + length]


_READER = _Reader()


class FileShrank(PatrolError):
    """The file ends before a byte that it held when it was opened."""


class Readable(Protocol):
    """Bytes that are read by offset: a file, or a part of one that is laid out like a file of its own."""

    path: Path

    @property
    def size_bytes(self) -> int: ...

    @property
    def modified_unix_s(self) -> float: ...

    def read_at(self, offset: int, length: int) -> bytes: ...  # exactly so many bytes, or FileShrank

    def crc32_at(self, offset: int, length: int) -> int: ...

    def is_zero_at(self, offset: int, length: int) -> bool: ...


class OpenedFile:
    """One regular file. A FIFO or device by a checkpoint's name is refused before it can block us.

    `through`: it will be read from end to end, so the kernel reads far ahead; else here and there. Asking it for each part oneself
    (POSIX_FADV_WILLNEED) costs twice the CPU: that fills the page cache by single pages.
    """

    def __init__(self, path: Path, pace: Pace | None = None, *, through: bool = False) -> None:
        self.path = path
        self._pace = pace or Pace()
        try:
            # O_NONBLOCK: opening a FIFO would wait for a writer. See fifo(7).
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as problem:
            raise explain(path, problem) from problem
        self._status = os.fstat(self._fd)
        if not stat.S_ISREG(self._status.st_mode):
            os.close(self._fd)
            raise BadInput(f"{printable(path)} is not a regular file", help="Name a checkpoint file, or the directory that holds them.")
        with contextlib.suppress(OSError):  # only advice, and some file systems know none
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL if through else os.POSIX_FADV_RANDOM)

    def part(self, start: int, length: int) -> "Part":
        """The bytes of a range, as if they were a file of their own."""
        return Part(self, start, length)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

    @property
    def size_bytes(self) -> int:
        return self._status.st_size

    @property
    def modified_unix_s(self) -> float:
        return self._status.st_mtime

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """Changes whenever the file is written or replaced."""
        return identity_of(self._status)

    def grown_or_rewritten(self) -> bool:
        """Whether the file changed since it was opened."""
        return identity_of(os.fstat(self._fd)) != self.identity

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; raises FileShrank where the file has fewer."""
        data = b"".join(bytes(chunk) for chunk in self._chunks(offset, length))
        if len(data) < length:
            raise FileShrank(f"{printable(self.path)} ends at byte {offset + len(data)}, before byte {offset + length}")
        return data

    def crc32_at(self, offset: int, length: int) -> int:
        """The CRC-32 of a range, read in chunks."""
        crc = seen = 0
        for chunk in self._chunks(offset, length):
            crc = crc32(chunk, crc)
            seen += len(chunk)
        if seen < length:
            raise FileShrank(f"{printable(self.path)} ends at byte {offset + seen}, before byte {offset + length}")
        return crc

    def is_zero_at(self, offset: int, length: int) -> bool:
        """Whether a range holds nothing but zeros."""
        return not any(bytes(chunk).strip(b"\0") for chunk in self._chunks(offset, length))

    def _chunks(self, offset: int, length: int) -> Iterator[memoryview]:
        """Views of this thread's buffer, each valid until the next read of this thread; fewer bytes than asked where the file ends."""
        end = offset + length
        while offset < end:
            buffer = _READER.buffer_for(offset, end - offset)
            count = os.preadv(self._fd, [buffer], offset)
            if count == 0:
                return
            self._pace.read(count)
            yield buffer[:count]
            offset += count


class Part:
    """A range of a file under check; offsets count from its start."""

    def __init__(self, file: OpenedFile, start: int, length: int) -> None:
        self.path = file.path
        self._file, self._start, self._length = file, start, length

    @property
    def size_bytes(self) -> int:
        return self._length

    @property
    def modified_unix_s(self) -> float:
        return self._file.modified_unix_s

    def read_at(self, offset: int, length: int) -> bytes:
        return self._file.read_at(self._start + offset, length)

    def crc32_at(self, offset: int, length: int) -> int:
        return self._file.crc32_at(self._start + offset, length)

    def is_zero_at(self, offset: int, length: int) -> bool:
        return self._file.is_zero_at(self._start + offset, length)


def identity_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Device, inode, size and time of the last write."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def printable(path: Path) -> str:
    """A path as text that any output takes; bytes that are no UTF-8 are spelled out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def one_line(text: str) -> str:
    """Text that names of others' choice are part of: whatever would move a terminal's cursor is spelled out."""
    return text if text.isprintable() else ascii(text)[1:-1]


def explain(path: Path, problem: OSError) -> PatrolError:
    """The error that tells an operator why a path could not be read."""
    said = f"cannot read {printable(path)}: {problem.strerror or problem}"
    match problem:
        case PermissionError():
            return NoPermission(said, help="Run the command as the user who owns the checkpoints, or allow this user to read them.")
        case FileNotFoundError():
            return BadInput(said, help="Check the path; a checkpoint may have been removed by the training's own clean-up.")
        case _:
            return BadInput(said, help="Check the path and the file system it is on.")
