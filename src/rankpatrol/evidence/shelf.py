"""Keeps the incidents under a size cap, oldest first, and never touches the open one."""

import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from rankpatrol.core.errors import EvidenceError, NoPermission
from rankpatrol.core.records import Record
from rankpatrol.evidence.bundle import PARTIAL, is_abandoned
from rankpatrol.evidence.manifest import load_manifest

DEFAULT_CAP_BYTES = 5_000_000_000
_DOOMED = ".doomed-"


class Tidied(Record, frozen=True, kw_only=True):
    """What went and what stayed. `kept_bytes` above the cap means that what is open alone is larger than it."""

    removed: tuple[str, ...]
    removed_bytes: int
    kept_bytes: int


class _Shelved(Record, frozen=True, kw_only=True):
    name: str
    sealed_unix_s: float
    size_bytes: int


def tidy(incidents: Path, *, cap_bytes: int = DEFAULT_CAP_BYTES, open_names: Collection[str] = ()) -> Tidied:
    """Remove the oldest bundles until the rest fits, and what dead writers left behind. Only bundles are ever removed."""
    _sweep(incidents)
    bundles = sorted(_bundles(incidents), key=lambda bundle: (bundle.sealed_unix_s, bundle.name))
    kept_bytes = sum(bundle.size_bytes for bundle in bundles)
    removed: list[_Shelved] = []
    for bundle in bundles:
        if kept_bytes <= cap_bytes:
            break
        if bundle.name in open_names or not _remove(incidents / bundle.name):
            continue
        kept_bytes -= bundle.size_bytes
        removed.append(bundle)
    return Tidied(
        removed=tuple(bundle.name for bundle in removed),
        removed_bytes=sum(bundle.size_bytes for bundle in removed),
        kept_bytes=kept_bytes,
    )


def shelve(sealed: Path, final: Path) -> None:
    """Carry a sealed bundle to its final place, whole or not at all; it is there already where its manifest is. Raises OSError."""
    if final.exists():
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}{PARTIAL}{secrets.token_hex(4)}")
    try:
        _copy(sealed, partial)
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    tidy(final.parent, open_names=(final.name,))


def _copy(sealed: Path, partial: Path) -> None:
    """Raises the first OSError: shutil's own names every file that did not go."""
    problems: list[OSError] = []

    def copy(source: str, target: str) -> str:
        try:
            return shutil.copy2(source, target)
        except OSError as problem:
            problems.append(problem)
            raise

    try:
        shutil.copytree(sealed, partial, copy_function=copy)
    except shutil.Error as several:
        raise problems[0] if problems else several from several


def _bundles(incidents: Path) -> Iterator[_Shelved]:
    for directory in _directories(incidents):
        if directory.name.startswith("."):
            continue
        try:
            sealed_unix_s = load_manifest(directory).sealed_unix_s
        except (EvidenceError, NoPermission):
            continue
        yield _Shelved(name=directory.name, sealed_unix_s=sealed_unix_s, size_bytes=_size_bytes(directory))


def _directories(incidents: Path) -> list[Path]:
    try:
        with os.scandir(incidents) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _size_bytes(directory: Path) -> int:
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(directory) for name in names)


def _remove(bundle: Path) -> bool:
    """Hidden first, then removed, so that nobody meets half a bundle under its name. False where it cannot be moved."""
    doomed = bundle.with_name(f".{bundle.name}{_DOOMED}{secrets.token_hex(4)}")
    try:
        bundle.rename(doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def _sweep(incidents: Path) -> None:
    for directory in _directories(incidents):
        if directory.name.startswith(".") and (_DOOMED in directory.name or (PARTIAL in directory.name and is_abandoned(directory))):
            shutil.rmtree(directory, ignore_errors=True)
