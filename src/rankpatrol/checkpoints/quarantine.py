"""A bad checkpoint that is newer than the newest good one, put where no script will find it: renamed, never deleted.

Most scripts take the newest directory by name. They would load the bad one, whatever they are told.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from rankpatrol.checkpoints.ledger import Identity
from rankpatrol.checkpoints.report import CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.set_verifier import identity_of_path
from rankpatrol.checkpoints.steps import called_step, step_in_directory_name
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.system.files import write_atomic

# Hidden, so that neither `checkpoint-*` nor a listing by prefix finds what lies in it; on the same file system, so that a rename will do.
FOLDER: Final = ".quarantined"
_CONDEMNING: Final = (CheckpointVerdict.CORRUPT, CheckpointVerdict.INCOMPLETE)


class NotQuarantined(PatrolError):
    """The checkpoint was left where it is."""

    help = "Nothing was renamed. Run `rankpatrol checkpoints verify` on it again: it may have been written meanwhile."


class Quarantine(Record, frozen=True, kw_only=True):
    """What will be renamed, to what, and why."""

    path: str
    becomes: str
    why: str


class Condemned(Record, frozen=True, kw_only=True):
    """The proof that `quarantine` demands: judged bad as it lay there, while nobody wrote to it. Made by `condemn` alone."""

    path: str
    report: CheckpointReport
    identity: Identity


def plan_quarantine(selection: Selection) -> tuple[Quarantine, ...]:
    """The bad checkpoints that a script would take for the newest; none where no good one is left to fall back on."""
    if selection.newest_good is None:
        return ()
    planned: dict[str, Quarantine] = {}
    for report in selection.rejected:
        if report.verdict in _CONDEMNING:
            path = _whole(Path(selection.directory), Path(report.path))
            if not os.path.lexists(path):
                continue  # what is missing cannot be set aside
            planned.setdefault(str(path), Quarantine(path=str(path), becomes=str(path.parent / FOLDER / path.name), why=report.sentence))
    return tuple(planned.values())


def would_load_bad(selection: Selection) -> str:
    """The sentence that says which bad checkpoint a script would choose by itself; "" where it would choose well."""
    bad = [report for report in selection.rejected if report.verdict in _CONDEMNING]
    if not bad or selection.newest_good is None:
        return ""
    lost = "" if selection.lost_steps is None else f", {say_count(selection.lost_steps, 'step')} earlier"
    name, good = Path(bad[0].path).name, selection.newest_good.path
    return f"the script would load {name}, which is bad ({bad[0].sentence}); the newest good one is {good}{lost}"


def condemn(report: CheckpointReport, planned: Quarantine, *, unchanged_for_s: float, now_unix_s: float) -> Condemned:
    """The proof for one planned rename. Raises NotQuarantined where it is not bad, or was written to a moment ago."""
    if report.verdict not in _CONDEMNING:
        raise NotQuarantined(f"{planned.path} is {report.verdict}, which is no reason to rename it")
    if now_unix_s - report.modified_unix_s < unchanged_for_s:
        raise NotQuarantined(f"{planned.path} was written to less than {unchanged_for_s:.0f} s ago: a save may be going on")
    return Condemned(path=planned.path, report=report, identity=identity_of_path(Path(planned.path)))


def quarantine(planned: Quarantine, proof: Condemned) -> Path:
    """Rename it, and leave a note of why beside it. Raises NotQuarantined where it changed since it was judged, or cannot be renamed."""
    path = Path(planned.path)
    if proof.path != planned.path or identity_of_path(path) != proof.identity:
        raise NotQuarantined(f"{planned.path} changed after it was judged")
    target = _free(Path(planned.becomes))
    try:
        target.parent.mkdir(exist_ok=True)
        write_atomic(target.with_name(f"{target.name}.why.json"), msgspec.json.encode(proof.report))
        path.rename(target)
    except OSError as problem:
        raise NotQuarantined(f"{planned.path} cannot be renamed: {problem.strerror}") from problem
    return target


def _whole(directory: Path, path: Path) -> Path:
    """The checkpoint that a judged path is or is a part of: a sub-directory only where its name, and not the file's, tells the step."""
    first = directory / path.relative_to(directory).parts[0]
    part = path != first and step_in_directory_name(first.name) is not None and called_step(path.stem) is None
    return first if part else path


def _free(target: Path) -> Path:
    candidate, count = target, 1
    while os.path.lexists(candidate):
        count += 1
        candidate = target.with_name(f"{target.name}.{count}")
    return candidate
