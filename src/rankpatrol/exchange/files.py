"""Files that cross from node to node in parts: what is asked for, how the owner answers, how the copy is put together."""

import hashlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Missing, Record
from rankpatrol.system.files import open_regular

# Half of what one message of the broker holds.
PART_BYTES = 512 << 10
_IN_FLIGHT = 8
# Evidence is far smaller; a node that says otherwise must not fill the hub's disk.
MOST_FILE_BYTES = 8 << 30
_HASHED_AT_ONCE = 1 << 20
_CHANGED = "changed while it was copied"


class FileWish(Record, frozen=True, kw_only=True):
    """What is wanted of an offered file: a look at it, a part, or the hash of its first `length` bytes. `mark` names the file once seen."""

    want: Literal["look", "part", "hash"]
    mark: str = ""
    offset: int = 0
    length: int = 0


class FileSeen(Record, frozen=True, kw_only=True):
    """An offered file at the first look: so much of it is copied, also where it grows."""

    size_bytes: int
    mark: str


Send = Callable[[FileWish, float], "Future[bytes | Missing]"]


def read_wish(body: bytes) -> FileWish:
    """Raises BadInput."""
    try:
        return msgspec.json.decode(body, type=FileWish)
    except msgspec.MsgspecError as problem:
        raise BadInput(f"a wish for a file that is not understood here: {problem}") from problem


def answer_wish(path: Path, wish: FileWish) -> bytes:
    """The owner's answer. Raises PatrolError or OSError where the file cannot be read or is another one by now."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise BadInput(f"{path} is gone") from None
    with file:
        facts = os.fstat(file.fileno())
        mark = f"{facts.st_dev}:{facts.st_ino}"
        if wish.want == "look":
            return msgspec.json.encode(FileSeen(size_bytes=facts.st_size, mark=mark))
        if wish.mark != mark:
            raise BadInput(f"{path} {_CHANGED}")
        if wish.want == "hash":
            return _hash(file, wish.length)
        part = os.pread(file.fileno(), min(max(wish.length, 0), PART_BYTES), wish.offset)
        if len(part) != wish.length:
            raise BadInput(f"{path} {_CHANGED}: it is shorter now")
        return part


def copy_file(send: Send, into: Path, deadline_s: float) -> int | Missing:
    """Fetch all parts, several in flight, and put the file in place once its hash is the owner's. Its size."""
    return _Copy(send, time.monotonic() + deadline_s).make(into)


class _Copy:
    """One copy under way."""

    def __init__(self, send: Send, until: float) -> None:
        self._send, self._until = send, until
        self._hash = hashlib.sha256()

    def make(self, into: Path) -> int | Missing:
        looked = self._wait(self._ask(FileWish(want="look")))
        if isinstance(looked, Missing):
            return looked
        try:
            seen = msgspec.json.decode(looked, type=FileSeen)
        except msgspec.MsgspecError as problem:
            return Missing(f"its owner's answer is not understood: {problem}")
        if not 0 <= seen.size_bytes <= MOST_FILE_BYTES:
            return Missing(f"{seen.size_bytes} bytes are more than is copied ({MOST_FILE_BYTES})")
        scratch = into.with_name(f".{into.name[:200]}.{secrets.token_hex(4)}.part")
        try:
            return self._write(seen, scratch, into)
        except OSError as problem:
            return Missing(f"the copy cannot be written: {problem.strerror} ({into})")
        finally:
            scratch.unlink(missing_ok=True)

    def _write(self, seen: FileSeen, scratch: Path, into: Path) -> int | Missing:
        theirs = self._ask(FileWish(want="hash", mark=seen.mark, length=seen.size_bytes))
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            failed = self._parts(seen, out)
        if failed is not None:
            return failed
        hashed = self._wait(theirs)
        if isinstance(hashed, Missing):
            return hashed
        if hashed != self._hash.digest():
            return Missing(_CHANGED)
        if time.monotonic() >= self._until:  # whoever waited has been told so already
            return Missing("it came too late")
        scratch.replace(into)
        return seen.size_bytes

    def _parts(self, seen: FileSeen, out: BinaryIO) -> Missing | None:
        offsets = iter(range(0, seen.size_bytes, PART_BYTES))
        flying: deque[tuple[int, Future[bytes | Missing]]] = deque()
        while True:
            while len(flying) < _IN_FLIGHT and (offset := next(offsets, None)) is not None:
                length = min(PART_BYTES, seen.size_bytes - offset)
                flying.append((length, self._ask(FileWish(want="part", mark=seen.mark, offset=offset, length=length))))
            if not flying:
                return None
            length, future = flying.popleft()
            part = self._wait(future)
            if isinstance(part, Missing):
                return part
            if len(part) != length:
                return Missing(f"a part of {length} bytes came with {len(part)}")
            self._hash.update(part)
            out.write(part)

    def _ask(self, wish: FileWish) -> "Future[bytes | Missing]":
        return self._send(wish, max(0.0, self._until - time.monotonic()))

    def _wait(self, future: "Future[bytes | Missing]") -> bytes | Missing:
        try:
            return future.result(max(0.0, self._until - time.monotonic()))
        except FutureTimeout:
            return Missing("the copy was not whole in time")


def _hash(file: BinaryIO, length: int) -> bytes:
    hashed, left = hashlib.sha256(), length
    while left > 0 and (block := file.read(min(_HASHED_AT_ONCE, left))):
        hashed.update(block)
        left -= len(block)
    return hashed.digest()
