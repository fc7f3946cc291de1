"""The sealed bundle: whole under its final name, or not there at all."""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from rankpatrol.core.errors import EvidenceError, ExitCode
from rankpatrol.core.records import Missing, Record
from rankpatrol.evidence.manifest import MANIFEST, VERSION, Manifest, RankEntry, Verification, load_manifest, safe_path, verify
from rankpatrol.system.clock import Clock
from rankpatrol.system.process import boot_id

__all__ = ["BundleWriter", "IncidentRef", "SealedBundle", "Verification", "is_abandoned", "load_manifest", "reopen", "verify"]

PARTIAL = ".partial-"

_ROOM = "Free some space: `run` tries again by itself. Or name a folder elsewhere (run --job-dir, capture --out)."
_WHY_NOT = {
    errno.ENOSPC: f"The disk is full. {_ROOM}",
    errno.EDQUOT: f"The quota is used up. {_ROOM}",
    errno.EROFS: "The file system is read-only. Name a folder that can be written (run --job-dir, capture --out).",
    errno.EACCES: "Nothing may be written there. Name a folder that this user owns (run --job-dir, capture --out).",
}


class BundleExists(EvidenceError):
    """There is something under the final name already, and evidence is never overwritten."""

    help = "Nothing was written. Check what is there with `rankpatrol bundle verify PATH`, or give another name."


class BundleNotWritten(EvidenceError):
    """The file system did not take the bundle; what was written of it is removed."""

    help = "Nothing was ended or signalled, since there is no evidence. Look at the file system of the job directory."


class BundleRefused(BundleNotWritten):
    """This user may not write there."""

    exit_code = ExitCode.NO_PERMISSION


class BundleBroken(EvidenceError):
    """The bundle is not what was sealed, so it proves nothing."""

    help = "Run `rankpatrol bundle verify PATH` to see each problem, then capture again."


class BundleFromElsewhere(EvidenceError):
    """The bundle was sealed before this machine started, or on another one: how fresh it is cannot be told."""

    help = "It can be read with `rankpatrol bundle show PATH`. To act, capture again."


class IncidentRef(Record, frozen=True, kw_only=True):
    """Which incident a bundle is about."""

    job: str
    attempt: int
    incident: int
    onset_unix_s: float


class SealedBundle(Record, frozen=True, kw_only=True):
    """Proof that the evidence of this very (job, attempt, incident) lies whole on disk; `act.execute` demands one.

    Nobody constructs it but `_proof` below, which only `BundleWriter.seal` and `reopen` call: a convention that a test holds.
    """

    job: str
    attempt: int
    incident: int
    path: str
    sealed_unix_s: float
    sealed_mono_s: float
    onset_unix_s: float
    manifest_sha256: str


def _proof(path: Path, manifest: Manifest, manifest_sha256: str) -> SealedBundle:
    return SealedBundle(
        job=manifest.job,
        attempt=manifest.attempt,
        incident=manifest.incident,
        path=str(path.absolute()),
        sealed_unix_s=manifest.sealed_unix_s,
        sealed_mono_s=manifest.sealed_mono_s,
        onset_unix_s=manifest.onset_unix_s,
        manifest_sha256=manifest_sha256,
    )


def reopen(path: Path) -> SealedBundle:
    """The proof of a bundle sealed earlier on this machine. Raises BundleBroken or BundleFromElsewhere where it proves nothing."""
    seen = verify(path)
    if isinstance(seen.manifest, Missing) or not seen.ok:
        raise BundleBroken(f"{path} is not whole: {seen.problems[0]}")
    if seen.manifest.boot_id != boot_id():
        raise BundleFromElsewhere(f"{path} was not sealed since this machine started")
    return _proof(path, seen.manifest, seen.manifest_sha256)


class BundleWriter:
    """Builds one bundle in a hidden directory beside its final name; left as a context unsealed, it leaves nothing behind."""

    def __init__(self, final: Path, clock: Clock) -> None:
        if os.path.lexists(final):
            raise BundleExists(f"{final} exists already")
        self._final = final
        self._clock = clock
        self._partial = final.with_name(f".{final.name}{PARTIAL}{secrets.token_hex(4)}")
        self._files: dict[str, str] = {}
        self._ranks: dict[int, RankEntry] = {}
        self._host_missing: dict[str, str] = {}
        self._touched: list[str] = []
        self._lock: int | None = None
        with self._whole_or_nothing():
            final.parent.mkdir(parents=True, exist_ok=True)
            self._partial.mkdir()
            self._lock = _claim(self._partial)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.discard()

    def add(self, relative_path: str, data: bytes) -> None:
        """Write one file. Raises UnsafePath where the path leads elsewhere or is taken, BundleNotWritten where the disk refuses."""
        safe_path(relative_path)
        if relative_path in self._files:
            raise BundleExists(f"{relative_path} is in the bundle already")
        with self._whole_or_nothing():
            self._write(relative_path, data)
        self._files[relative_path] = hashlib.sha256(data).hexdigest()

    def rank(self, rank: int, *, node: str, pid: int) -> None:
        """Name a rank, before anything is said to be captured or missing of it."""
        self._ranks[rank] = RankEntry(rank=rank, node=node, pid=pid)

    def captured(self, rank: int, what: str) -> None:
        entry = self._ranks[rank]
        self._ranks[rank] = msgspec.structs.replace(entry, captured=(*entry.captured, what))

    def missing(self, rank: int, what: str, why: str) -> None:
        entry = self._ranks[rank]
        self._ranks[rank] = msgspec.structs.replace(entry, missing={**entry.missing, what: why})

    def host_missing(self, what: str, why: str) -> None:
        self._host_missing[what] = why

    def touched(self, how: str) -> None:
        """Say how a process was touched, for example `rank 3: py-spy non-blocking 3x, native stack once 0.3 s`."""
        self._touched.append(how)

    def seal(self, of: IncidentRef) -> SealedBundle:
        """Flush every file, write the manifest last, and give the bundle its final name in one step."""
        manifest = self._manifest(of)
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
        with self._whole_or_nothing():
            for relative in self._files:
                _flush(self._partial / relative)
            self._write(MANIFEST, data)
            _flush(self._partial / MANIFEST)
            for directory in self._directories():
                _flush(directory)
            self._publish()
        self.discard()
        return _proof(self._final, manifest, hashlib.sha256(data).hexdigest())

    def discard(self) -> None:
        """Remove what is not sealed; harmless at any time and any number of times."""
        # A disk that refuses writes may refuse this too. What stays behind is hidden, and `shelf.tidy` removes it later.
        shutil.rmtree(self._partial, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _manifest(self, of: IncidentRef) -> Manifest:
        return Manifest(
            version=VERSION,
            job=of.job,
            attempt=of.attempt,
            incident=of.incident,
            onset_unix_s=of.onset_unix_s,
            sealed_unix_s=self._clock.unix_s(),
            sealed_mono_s=self._clock.mono_s(),
            boot_id=boot_id(),
            ranks=tuple(self._ranks[rank] for rank in sorted(self._ranks)),
            host_missing=self._host_missing,
            touched=tuple(self._touched),
            files=self._files,
        )

    def _publish(self) -> None:
        # rename(2) replaces an empty directory without a word but never a full one, so losing a race here loses no evidence.
        if os.path.lexists(self._final):
            raise FileExistsError(errno.EEXIST, "something else took the name meanwhile")
        self._partial.rename(self._final)
        _flush(self._final.parent)

    def _write(self, relative: str, data: bytes) -> None:
        if self._lock is None:
            raise BundleNotWritten(f"the bundle {self._final} was sealed or discarded already")
        target = self._partial / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            out.write(data)

    def _directories(self) -> list[Path]:
        parents = {parent for relative in self._files for parent in Path(relative).parents}
        return [self._partial / parent for parent in sorted(parents, key=lambda parent: len(parent.parts), reverse=True)]

    @contextlib.contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            self.discard()
            what = f"cannot write the bundle {self._final}: {problem.strerror}"
            kind = BundleRefused if problem.errno in {errno.EACCES, errno.EPERM, errno.EROFS} else BundleNotWritten
            raise kind(what, help=_WHY_NOT.get(problem.errno or 0, BundleNotWritten.help)) from problem


def is_abandoned(partial: Path) -> bool:
    """Whether the writer of this partial directory is gone. False where that cannot be told: not knowing is no reason to remove."""
    try:
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _claim(partial: Path) -> int:
    """A descriptor whose lock says that the writer lives; the kernel drops it with the process (flock(2))."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    # NFS may refuse a lock on a directory. Then is_abandoned() is refused there as well, and nothing is removed.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _flush(path: Path) -> None:
    """Put one file or directory on the disk; a full disk may only say so here (close(2), NFS and delayed allocation)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
