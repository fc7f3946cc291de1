"""What a bundle says about itself, and whether that is still true."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath

import msgspec

from rankpatrol.core.errors import EvidenceError, ExitCode, NoPermission
from rankpatrol.core.records import Missing, Record

MANIFEST = "manifest.json"
VERSION = 1

# Where the words of `captured` lie. `children` has as many files as the rank has descendants, so none is demanded.
CAPTURED_IN = {
    "stack": "ranks/{rank}/stack.json",
    "proc": "ranks/{rank}/proc.json",
    "log_tail": "ranks/{rank}/log_tail.txt",
    "native": "ranks/{rank}/native.txt",
    "flight_recorder": "ranks/{rank}/flight_recorder.json",
}


class NotABundle(EvidenceError):
    """The path is not a directory with a manifest in it."""

    help = "Give the directory that holds manifest.json, such as JOBDIR/incidents/1."
    exit_code = ExitCode.BAD_INPUT


class ManifestUnreadable(EvidenceError):
    """There is a manifest, but it cannot be read as one of ours."""

    help = "It was damaged after it was sealed, or is newer than this rankpatrol. Copy it again from the node that sealed it."
    exit_code = ExitCode.BAD_INPUT


class UnsafePath(EvidenceError):
    """A path would lead out of the bundle, or means something else than it says."""

    help = "Paths in a bundle are relative, with no '.' or '..' in them. Report this as a bug."


class RankEntry(Record, frozen=True, kw_only=True):
    """What was captured of one rank, and what was not, with the reason."""

    rank: int
    node: str
    pid: int
    captured: tuple[str, ...] = ()
    missing: dict[str, str] = msgspec.field(default_factory=dict)


class Manifest(Record, frozen=True, kw_only=True):
    """The list of what a sealed bundle holds. `sealed_mono_s` is only comparable within `boot_id`."""

    version: int
    job: str
    attempt: int
    incident: int
    onset_unix_s: float
    sealed_unix_s: float
    sealed_mono_s: float
    boot_id: str
    ranks: tuple[RankEntry, ...]
    host_missing: dict[str, str] = msgspec.field(default_factory=dict)
    touched: tuple[str, ...]
    files: dict[str, str]


class Verification(Record, frozen=True, kw_only=True):
    """What `verify` found: each problem is one sentence. `manifest_sha256` is of the very bytes that were checked."""

    path: str
    manifest: Manifest | Missing
    manifest_sha256: str
    files_checked: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


class _Version(Record, frozen=True):
    version: int


def safe_path(relative: str) -> str:
    """The path as it is, where it stays inside the bundle and is not the manifest's own; else UnsafePath."""
    parts = PurePosixPath(relative)
    written_plainly = str(parts) == relative and relative not in {"", "."}
    if not written_plainly or parts.is_absolute() or ".." in parts.parts or "\0" in relative or relative == MANIFEST:
        raise UnsafePath(f"{relative!r} is not a path inside a bundle")
    return relative


def load_manifest(path: Path) -> Manifest:
    """The manifest of the bundle at `path`, unchecked against the files. Raises NotABundle or ManifestUnreadable."""
    return _decode(_manifest_bytes(path))


def verify(path: Path) -> Verification:
    """Compare every file with the manifest. Raises NotABundle where there is nothing to compare; never follows a link."""
    data = _manifest_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    try:
        manifest = _decode(data)
    except ManifestUnreadable as problem:
        return Verification(
            path=str(path), manifest=Missing(str(problem)), manifest_sha256=digest, files_checked=0, problems=(str(problem),)
        )
    problems = (*_file_problems(path, manifest), *_capture_problems(manifest))
    return Verification(path=str(path), manifest=manifest, manifest_sha256=digest, files_checked=len(manifest.files), problems=problems)


def _manifest_bytes(path: Path) -> bytes:
    try:
        with open_plain(path / MANIFEST) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise NotABundle(f"{path} is not a bundle: it has no {MANIFEST}") from None
    except PermissionError:
        raise NoPermission(f"{path / MANIFEST} may not be read", help="Run as the user that owns the job directory, or as root.") from None
    except OSError as problem:
        raise ManifestUnreadable(f"{MANIFEST} cannot be read: {_reason(problem)}") from problem


def _decode(data: bytes) -> Manifest:
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise ManifestUnreadable(f"{MANIFEST} has version {version}; this rankpatrol knows version {VERSION}")
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ManifestUnreadable(f"{MANIFEST} is not a manifest: {problem}") from problem


def _file_problems(root: Path, manifest: Manifest) -> Iterator[str]:
    present: set[str] = set()
    for relative, mode in _walk(root):
        present.add(relative)
        if stat.S_ISLNK(mode):
            yield f"{_say(relative)} is a symbolic link; a bundle holds plain files only"
        elif stat.S_ISDIR(mode):
            yield f"{_say(relative) or 'the bundle'} cannot be listed"
        elif not stat.S_ISREG(mode):
            yield f"{_say(relative)} is not a plain file"
        elif relative not in manifest.files and relative != MANIFEST:
            yield f"{_say(relative)} is not listed in the manifest"
        elif relative != MANIFEST and (problem := _content_problem(root / relative, manifest.files[relative])):
            yield f"{_say(relative)} {problem}"
    for relative in sorted(set(manifest.files) - present):
        yield f"{_say(relative)} is listed in the manifest but absent"


def _walk(root: Path, below: str = "") -> Iterator[tuple[str, int]]:
    """Every path under `root` that is not a directory, and each directory that cannot be listed, with its mode; links are not followed."""
    try:
        with os.scandir(root / below) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        yield below.rstrip("/"), stat.S_IFDIR
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, f"{below}{entry.name}/")
        else:
            yield f"{below}{entry.name}", entry.stat(follow_symlinks=False).st_mode


def _content_problem(file_path: Path, expected_sha256: str) -> str | None:
    try:
        with open_plain(file_path) as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        return f"cannot be read: {_reason(problem)}"
    return None if actual == expected_sha256 else "was changed after the bundle was sealed: its hash differs"


def _capture_problems(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.ranks:
        for what in entry.captured:
            where = CAPTURED_IN.get(what, "").format(rank=entry.rank)
            if where and where not in manifest.files:
                yield f"rank {entry.rank}: {what} is said to be captured, but {where} is not in the bundle"


def open_plain(path: Path) -> BufferedReader:
    """A regular file, opened for reading: a link is refused, and a FIFO in its place cannot hold us up (open(2))."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a plain file")


def _reason(problem: OSError) -> str:
    return "it is a symbolic link" if problem.errno == errno.ELOOP else str(problem.strerror)


def _say(relative: str) -> str:
    """A name that is safe to print: what somebody slipped into a bundle may hold terminal sequences."""
    return relative if relative.isprintable() else ascii(relative)
