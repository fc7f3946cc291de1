"""Takes the records out of a bundle again, as `bundle show` and `diagnose` need them."""

from pathlib import Path
from typing import TypeVar

import msgspec

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.errors import EvidenceError, ExitCode
from rankpatrol.core.snapshot import Snapshot
from rankpatrol.evidence.manifest import MANIFEST, open_plain

AT_ALERT = "at_alert/"
Loaded = TypeVar("Loaded")


class PartUnreadable(EvidenceError):
    """A part of a bundle is absent or damaged."""

    help = "Run `rankpatrol bundle verify PATH` to see what changed, and copy the bundle again from the node that sealed it."
    exit_code = ExitCode.BAD_INPUT


def load_snapshot(bundle: Path, *, at_alert: bool = False) -> Snapshot:
    """The snapshot that a bundle holds, as `diagnose` reads it again. Verify the bundle first."""
    return _load(bundle, f"{AT_ALERT if at_alert else ''}snapshot.json", Snapshot)


def load_diagnosis(bundle: Path) -> Diagnosis:
    """The diagnosis that a bundle holds. Verify the bundle first."""
    return _load(bundle, "diagnosis.json", Diagnosis)


def is_bundle(folder: Path) -> bool:
    """True where evidence was sealed, whole or not."""
    return (folder / MANIFEST).is_file() and (folder / "diagnosis.json").is_file()


def last_bundle(job_dir: Path) -> Path | None:
    """The newest sealed incident of a job directory; incidents are numbered."""
    sealed = [folder for folder in job_dir.glob("incidents/*") if is_bundle(folder)]
    return max(sealed, key=lambda folder: (len(folder.name), folder.name), default=None)


def _load(bundle: Path, name: str, kind: type[Loaded]) -> Loaded:
    try:
        with open_plain(bundle / name) as file:
            return msgspec.json.decode(file.read(), type=kind)
    except OSError as problem:
        raise PartUnreadable(f"{bundle / name}: {problem.strerror}") from problem
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise PartUnreadable(f"{bundle / name} is not what it should be: {problem}") from problem
