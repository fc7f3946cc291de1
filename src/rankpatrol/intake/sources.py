"""Finds and opens what a user points at: files, folders with loops, packed logs, standard input. Never fails on one of many."""

import gzip
import importlib
import io
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.core.records import Missing, Record

STDIN = "-"
_MOST_FILES = 200_000
_FIRST_BYTE_WITHIN_S = 10
_CHUNK_BYTES = 1 << 22
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_READERS = ("compression.zstd", "backports.zstd", "zstandard")
# Weights, pictures and programs are no logs; a checkpoint of many GB is not read through.
_NO_LOG = frozenset({
    ".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".distcp", ".npy", ".npz", ".so", ".png", ".jpg", ".jpeg", ".gif", ".mp4", ".whl",
    ".tar", ".zip", ".parquet", ".arrow", ".pyc", ".idx", ".db", ".sqlite",
})  # fmt: skip
_NUMBER = re.compile(r"(\d+)")


class Source(Record, frozen=True):
    """One thing to read: what it is called, and how big it is where that is known."""

    name: str
    path: Path | None
    size_bytes: int | None


def find(paths: tuple[str, ...]) -> tuple[list[Source], list[Missing]]:
    """All readable files below some paths, each once, in natural order; and what could not be looked at.

    Raises:
        BadInput: where a path is not there at all.
    """
    found: list[Source] = []
    missing: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    for text in paths:
        if text == STDIN:
            found.append(Source("standard input", None, None))
            continue
        path = Path(text)
        if not os.path.lexists(path):
            raise BadInput(f"{text} is not there", help="Give a log, a folder of logs, a sealed bundle, or - for standard input.")
        for one in _below(path, missing):
            if len(found) >= _MOST_FILES:
                missing.append(Missing(f"only the first {_MOST_FILES} files were read"))
                return found, missing
            _add(one, found, missing, seen, named=one is path)
    return found, missing


def _below(path: Path, missing: list[Missing]) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    # A link that leads back up is not followed: links to folders are left out, links to files are read.
    for folder, names, files in os.walk(path, onerror=lambda problem: missing.append(Missing(str(problem)))):
        names.sort(key=_natural)
        yield from (Path(folder, name) for name in sorted(files, key=_natural))


def _add(path: Path, found: list[Source], missing: list[Missing], seen: set[tuple[int, int]], *, named: bool) -> None:
    try:
        status = path.stat()
    except OSError as problem:
        missing.append(Missing(f"{path}: {problem.strerror}"))
        return
    # What is no plain file (a pipe, a device) may never end, nor begin; a pipe that is named, as a shell's <(command) is, is meant.
    if not stat.S_ISREG(status.st_mode) and not (named and stat.S_ISFIFO(status.st_mode)):
        return
    if (status.st_dev, status.st_ino) in seen or path.suffix.lower() in _NO_LOG:
        return
    seen.add((status.st_dev, status.st_ino))
    found.append(Source(str(path), path, status.st_size if stat.S_ISREG(status.st_mode) else None))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _NUMBER.split(name)]


def chunks(source: Source) -> Iterator[bytes]:
    """The plain bytes of a source, unpacked where it is packed; what could be read before a damage is given.

    Raises:
        NoPermission: it may not be read.
        BadInput: it cannot be read, or its packing needs a library that is not installed.
    """
    try:
        with ExitStack() as opened:
            file = _open(source, opened)
            # Of a packed stream one read at a time: what came before a damage is given before the damage is met.
            read = file.read if isinstance(file, io.BufferedReader) else getattr(file, "read1", file.read)
            while chunk := read(_CHUNK_BYTES):
                yield chunk
    except OSError as problem:
        kind = NoPermission if isinstance(problem, PermissionError) else BadInput
        raise kind(f"{source.name}: {problem.strerror or problem}", help="The rest was read.") from problem
    except _damages() as problem:
        raise BadInput(f"{source.name} is packed, and damaged or cut: {problem}", help="What came before the damage was read.") from problem


def texts(source: Source, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces from the first on that holds text.

    Raises:
        BadInput: none does, so it is no log: a picture, an archive in a format that is not known here, noise.
    """
    began = empty = True
    for piece in pieces:
        empty = False
        began = began and _is_binary(piece)
        if not began:
            yield piece
    if began and not empty:
        raise BadInput(f"{source.name} is binary and no text", help="A flight recording is known by the rank at the end of its name.")


def _is_binary(piece: bytes) -> bool:
    """Whether begin and end both look like noise: control characters (noise has one in eleven bytes, text of any encoding hardly one).

    Zeros do not count: a log cut while it was written begins with a hole (logrotate's copytruncate). One line of text makes it text.
    """
    return all(
        len(end) - len(end.translate(None, _CONTROLS)) > _NOISE_RATIO * len(end) and _LINE_OF_TEXT.search(end) is None
        for end in (piece[:_END_BYTES], piece[-_END_BYTES:])
    )


# All C0 controls but zero, the ends of lines and pages, tab, backspace, bell and escape (terminals' colours and progress bars).
_CONTROLS = bytes(code for code in range(1, 32) if code not in {7, 8, 9, 10, 11, 12, 13, 27})
_NOISE_RATIO, _END_BYTES = 0.02, 64 << 10
_LINE_OF_TEXT = re.compile(rb"^[\t\x20-\x7e]{16,}\r?$", re.MULTILINE)


def _open(source: Source, opened: ExitStack) -> BinaryIO:
    """The plain stream; all that was opened for it is closed with `opened`, and standard input is left alone."""
    raw = _stdin() if source.path is None else opened.enter_context(_file(source.path, piped=source.size_bytes is None))
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(_Raw(raw))
    head = buffered.peek(4)[:4]
    if head.startswith(_GZIP):
        return cast("BinaryIO", opened.enter_context(gzip.open(buffered)))
    if head.startswith(_ZSTD):
        return opened.enter_context(_zstd(source, buffered))
    return buffered


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise BadInput("standard input is closed", help="Pipe a text into `rankpatrol diagnose -`, or name a file.")
    return sys.stdin.buffer


def _file(path: Path, *, piped: bool) -> BinaryIO:
    """A file opened for reading; of a pipe only once its first byte is there, or its writer has gone. Raises BadInput, OSError."""
    # Without O_NONBLOCK the opening itself waits for a writer (fifo(7)); a file in whose place a pipe was put cannot hold us up either.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return file
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not piped or not poll.poll(_FIRST_BYTE_WITHIN_S * 1000):
        file.close()
        raise BadInput(
            f"{path} is a pipe into which nothing was written for {_FIRST_BYTE_WITHIN_S} s"
            if piped
            else f"{path} is no plain file any more",
            help="Start what writes into it first, or give a file.",
        )
    os.set_blocking(descriptor, True)
    return file


class _Raw(io.RawIOBase):
    """A stream that is not buffered the usual way, so that its first bytes can be looked at."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _damages() -> tuple[type[Exception], ...]:
    """What unpacking raises for damaged bytes, of the zstd library too if one is in use."""
    zstd: list[type[Exception]] = [sys.modules[name].ZstdError for name in _ZSTD_READERS if name in sys.modules]
    return (EOFError, zlib.error, *zstd)


def _zstd(source: Source, file: BinaryIO) -> BinaryIO:
    for name in _ZSTD_READERS:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        opened: BinaryIO = module.open(file, "rb")
        return opened
    raise BadInput(
        f"{source.name} is packed with zstd, and no library for that is installed",
        help="Install one (`pip install backports.zstd`), or unpack it first: `zstd -dc FILE | rankpatrol diagnose -`.",
    )
