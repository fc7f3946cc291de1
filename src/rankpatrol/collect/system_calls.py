"""The system call a process's main thread is in, and the file that call is about."""

import os

from rankpatrol.collect.procfs import ProcessDirectory, number_after
from rankpatrol.collect.syscalls import OUTSIDE, RUNNING, call_arguments, call_name
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import SystemCall

_AT_FDCWD = -100
_LONGEST_PATH_BYTES = 4096


class FilePlace(Record, frozen=True):
    """A file, and how far into it a descriptor has come; each None where it could not be learned or does not exist."""

    path: str | None = None
    offset_bytes: int | None = None


def read_system_call(process: ProcessDirectory, *, memory_is_free: bool) -> SystemCall | Missing:
    """The call now. Its file is named only if the process is still in the same call after the look-up.

    `memory_is_free`: no other thread of it is in D state, so that reading the file name from its memory cannot hang.
    """
    text = process.read("syscall")
    if isinstance(text, Missing):
        return text
    words = text.split()
    if not words:
        return Missing(f"/proc/{process.pid}/syscall is empty")
    if words[0] == b"running":
        return SystemCall(RUNNING)
    if words[0] == b"-1":
        return SystemCall(OUTSIDE)
    name = call_name(int(words[0]))
    arguments = tuple(int(word, 16) for word in words[1:7])
    place = _place(process, name, arguments, memory_is_free=memory_is_free)
    if place != FilePlace() and process.read("syscall") != text:
        place = FilePlace()
    return SystemCall(name, arguments, place.path, place.offset_bytes)


def descriptor_place(process: ProcessDirectory, descriptor: int) -> FilePlace | Missing:
    """Where a descriptor leads. Sockets, pipes and the like have a name and no offset."""
    path = process.link(f"fd/{descriptor}")
    if isinstance(path, Missing):
        return path
    if not path.startswith("/"):
        return FilePlace(path)
    info = process.read(f"fdinfo/{descriptor}")
    return FilePlace(path, None if isinstance(info, Missing) else number_after(info, b"pos:"))


def _place(process: ProcessDirectory, name: str, arguments: tuple[int, ...], *, memory_is_free: bool) -> FilePlace:
    about = call_arguments(name)
    if about.path is not None:
        start = _AT_FDCWD if about.dir is None else _descriptor(arguments[about.dir])
        return FilePlace(_named_path(process, arguments[about.path], start) if memory_is_free else None)
    if about.fd is None or (descriptor := _descriptor(arguments[about.fd])) < 0:
        return FilePlace()
    place = descriptor_place(process, descriptor)
    if isinstance(place, Missing):
        return FilePlace()
    # pread(2) and mmap(2) say where they read; the descriptor's own position does not move.
    return place if about.at is None else FilePlace(place.path, arguments[about.at])


def _named_path(process: ProcessDirectory, address: int, start: int) -> str | None:
    held = process.read_memory(address, _LONGEST_PATH_BYTES)
    if isinstance(held, Missing) or b"\0" not in held:
        return None
    path = os.fsdecode(held[: held.index(b"\0")])
    if path.startswith("/"):
        return path
    base = process.link("cwd" if start == _AT_FDCWD else f"fd/{start}")
    if isinstance(base, Missing):
        return path or None
    # An empty name stands for the descriptor itself: AT_EMPTY_PATH of statx(2) and fstatat(2).
    return os.path.join(base, path) if path else base  # ruff: ignore[PTH118] - a foreign path, to be kept letter by letter


def _descriptor(argument: int) -> int:
    """The argument as the C int it is in the kernel: AT_FDCWD comes as 0xffffff9c."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
