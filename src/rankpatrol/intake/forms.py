"""Which forms of evidence `diagnose` knows: a table each for files that are read as a whole and for text that is recognised by its look.

A new form is a row. What no row recognises is read as a log.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.analysis.told.events import diagnose_events
from rankpatrol.analysis.told.fr_trace import diagnose_fr_trace
from rankpatrol.analysis.told.listings import diagnose_listing
from rankpatrol.analysis.told.pasted_dumps import diagnose_pasted_dumps, looks_like_pasted_dumps
from rankpatrol.analysis.told.recordings import diagnose_recordings
from rankpatrol.analysis.told.stacks import diagnose_stacks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Record
from rankpatrol.evidence.manifest import verify
from rankpatrol.evidence.reading import is_bundle, last_bundle, load_diagnosis
from rankpatrol.formats.fr_trace_text import looks_like_fr_trace
from rankpatrol.formats.stack_text import looks_like_stacks
from rankpatrol.intake.recordings import begins_like_a_recording, rank_in_name, read_recordings
from rankpatrol.journal import read_event_file

_MOST_LISTING_BYTES = 1 << 20
_FIRST_LINE_CHARS = 1 << 16


class FolderForm(Record, frozen=True):
    """A folder that is one piece of evidence. `recognises` looks at names alone; `read` may raise a PatrolError."""

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Diagnosis | None]


class Beside(Record, frozen=True):
    """What the logs beside other evidence tell: own exceptions by rank, ranks that timed out, and how many ranks there are."""

    errors: dict[int, str]
    timed_out: frozenset[int]
    world_size: int | None


class FileForm(Record, frozen=True):
    """Files that belong together, such as one recording a rank: recognised by their names, then by the first 64 KB."""

    name: str
    named: Callable[[Path], bool]
    begins: Callable[[bytes], bool]
    read: Callable[[tuple[Path, ...], Beside], Diagnosis | None]


class TextForm(Record, frozen=True):
    """Text that is recognised by its look. `read` gets all of it, and answers None where it says nothing."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[str], Diagnosis | None]


def _is_job_directory(folder: Path) -> bool:
    return (folder / "events.jsonl").is_file() and any(
        (folder / name).exists() for name in ("job.json", "state.json", "attempts", "incidents")
    )


def _of_job(folder: Path) -> Diagnosis | None:
    """The last verdict, as its bundle has it where that is here, with what followed; without a verdict, the logs have more to say."""
    told = diagnose_events(read_event_file(folder / "events.jsonl"))
    if told is None or not (told.judged or told.diagnosis.verdict == "healthy"):
        return _of_last_incident(folder)
    bundle = None if told.bundle is None else folder / "incidents" / Path(told.bundle).name
    if bundle is None or not is_bundle(bundle):
        return told.diagnosis
    sealed = _of_bundle(bundle)
    return msgspec.structs.replace(sealed, reasons_for=(*sealed.reasons_for, told.followed))


def _begins_like_events(head: bytes) -> bool:
    """Whether the first line is an event by our contract: an object with a kind, a time and an attempt."""
    try:
        first = msgspec.json.decode(head.lstrip().partition(b"\n")[0], type=_FirstEvent)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return first.kind != ""


class _FirstEvent(Record, frozen=True):
    at_unix_s: float
    kind: str
    attempt: int


def _events(paths: tuple[Path, ...], _beside: Beside) -> Diagnosis | None:
    """What the file says that was written to last. Raises BadInput, NoPermission."""
    newest = max(paths, key=lambda path: path.stat().st_mtime)
    told = diagnose_events(read_event_file(newest))
    return None if told is None else told.diagnosis


def _of_event_text(text: str) -> Diagnosis | None:
    """The same of events from a pipe."""
    told = diagnose_events(_objects(text))
    return None if told is None else told.diagnosis


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            yield msgspec.json.decode(line, type=dict[str, Any])


def _of_bundle(folder: Path) -> Diagnosis:
    """What was sealed; of a bundle that is not as it was sealed no more than a suspicion. Raises a PatrolError."""
    found, seen = load_diagnosis(folder), verify(folder)
    if seen.ok:
        return found
    doubt = f"this bundle is not as it was sealed: {seen.problems[0]}"
    return msgspec.structs.replace(found, certainty=Certainty.SUSPECTED, reasons_against=(doubt, *found.reasons_against))


def _of_last_incident(job_dir: Path) -> Diagnosis | None:
    bundle = last_bundle(job_dir)
    return _of_bundle(bundle) if bundle is not None else None


def _carries_a_rank(path: Path) -> bool:
    return rank_in_name(path) is not None


def _recordings(paths: tuple[Path, ...], beside: Beside) -> Diagnosis | None:
    """What the dumps say; where none can be read, the reasons. Raises BadInput."""
    found, reasons = read_recordings(paths)
    if not found.rings and reasons:
        path, why = next(iter(reasons.items()))
        raise BadInput(f"{path}: {why}", help="Give the dumps as torch wrote them: one file a rank, whose name ends in the rank.")
    answer = diagnose_recordings(found, errors=beside.errors, timed_out=beside.timed_out, world_size=beside.world_size)
    if answer is None or not reasons:
        return answer
    said = tuple(f"{path.name} was not used: {why}" for path, why in list(reasons.items())[:3])
    return msgspec.structs.replace(answer, reasons_against=(*answer.reasons_against, *said))


def _may_be_listing(text: str) -> bool:
    """Listings are short; a longer text is a log."""
    return len(text) <= _MOST_LISTING_BYTES


RECORDINGS, STACKS = "flight recording", "stacks"
# Where a folder's form has no answer, its files are read one by one.
FOLDER_FORMS: tuple[FolderForm, ...] = (
    FolderForm("sealed bundle", is_bundle, _of_bundle),
    FolderForm("job directory", _is_job_directory, _of_job),
    FolderForm("folder with sealed incidents", lambda folder: last_bundle(folder) is not None, _of_last_incident),
)
FILE_FORMS: tuple[FileForm, ...] = (
    FileForm(RECORDINGS, _carries_a_rank, begins_like_a_recording, _recordings),
    FileForm("our own events", lambda path: path.suffix in {".jsonl", ".json"}, _begins_like_events, _events),
)
TEXT_FORMS: tuple[TextForm, ...] = (
    TextForm("our own events", lambda text: _begins_like_events(text[:_FIRST_LINE_CHARS].encode()), _of_event_text),
    TextForm("flight recorder analyser's output", looks_like_fr_trace, diagnose_fr_trace),
    TextForm("pasted flight recordings", looks_like_pasted_dumps, diagnose_pasted_dumps),
    TextForm("listing", _may_be_listing, diagnose_listing),
    TextForm(STACKS, looks_like_stacks, diagnose_stacks),
)
