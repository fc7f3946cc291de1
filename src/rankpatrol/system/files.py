"""Files that are whole or not there at all, and files of others that are read without waiting for them."""

import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from rankpatrol.core.errors import BadInput, NoPermission

_REFUSES = "Its disk or its server refuses; look again later."
_NOT_PLAIN = "Give the file itself. If another program put this there, remove it, or look into a copy of the folder without it."


def write_atomic(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace `path` in one step. A reader sees the old file or the new one, never a part; `durable` also flushes it to disk first."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as out:
            out.write(data)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` in one step with a file that nobody but its owner may read (0600), from its first byte on."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            out.write(data)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def private_folder(path: Path, whose: str) -> Path:
    """`path` as an absolute folder, made where it was not there, then for its owner alone. Raises BadInput, which calls it `whose`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        help_ = "Name a local folder you can write to."
        raise BadInput(f"{whose} cannot be made: {problem.strerror} ({path})", help=help_) from problem
    return path.resolve()


def write_once(path: Path, data: bytes) -> bool:
    """Create `path` whole, unless it exists already: the first of several writers wins. True where we were first."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        scratch.unlink(missing_ok=True)
    return True


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened for reading: a pipe in its place cannot hold us up (open(2)).

    Raises:
        FileNotFoundError: it is not there; what that means only the caller knows.
        NoPermission: the file system refuses.
        BadInput: it is a pipe, a device, a folder, or a loop of links.
    """
    try:
        # Asked before it is opened: to open a device may do something.
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{path} is no regular file (a pipe, a folder or a device stands there)", help=_NOT_PLAIN)
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except PermissionError as problem:
        raise NoPermission(f"{path} cannot be read", help="Run it as the user who owns it, or as root; or look into a copy.") from problem
    except (OSError, ValueError) as problem:  # ValueError: a zero byte in a name that a foreign file gave us
        raise BadInput(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}", help=_NOT_PLAIN) from problem
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise BadInput(f"{path} is no regular file any more", help=_NOT_PLAIN)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """All of a regular file of at most this size. Raises as `open_regular` does, and BadInput where it is larger or its disk fails."""
    with open_regular(path) as file:
        try:
            content = file.read(most_bytes + 1)
        except OSError as problem:
            raise BadInput(f"{path} cannot be read: {problem.strerror}", help=_REFUSES) from problem
    if len(content) > most_bytes:
        raise BadInput(
            f"{path} is larger than {most_bytes} bytes, too large for what it is named", help="Was it put there by another program?"
        )
    return content
