"""Which forms of evidence `diagnose` knows: a table each for files that are read as a whole and for text that is recognised by its look.

A new form is a row. What no row recognises is read as a log.
"""

from collections.abc import Callable
from pathlib import Path

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.evidence.reading import load_diagnosis

_SURENESS = {Certainty.SUSPECTED: 0, Certainty.SUPPORTED: 1, Certainty.PROVED: 2}


class FolderForm(Record, frozen=True):
    """A folder that is one piece of evidence. `recognises` looks at names alone; `read` may raise a PatrolError."""

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Diagnosis | None]


class FileForm(Record, frozen=True):
    """Files that belong together, such as one recording a rank. `recognises` gets the first 64 KB and the name."""

    name: str
    recognises: Callable[[bytes, str], bool]
    read: Callable[[tuple[Path, ...]], Diagnosis | None]


class TextForm(Record, frozen=True):
    """Text that is recognised by its look. `read` gets all of it, and answers None where it says nothing."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[str], Diagnosis | None]


def _is_bundle(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "diagnosis.json").is_file()


def _last_bundle(job_dir: Path) -> Path | None:
    """The newest sealed incident of a job directory; incidents are numbered."""
    sealed = [folder for folder in job_dir.glob("incidents/*") if _is_bundle(folder)]
    return max(sealed, key=lambda folder: (len(folder.name), folder.name), default=None)


def _of_last_incident(job_dir: Path) -> Diagnosis | None:
    bundle = _last_bundle(job_dir)
    return load_diagnosis(bundle) if bundle is not None else None


# Where a folder's form has no answer, its files are read one by one.
FOLDER_FORMS: tuple[FolderForm, ...] = (
    FolderForm("sealed bundle", _is_bundle, load_diagnosis),
    FolderForm("job directory with a sealed incident", lambda folder: _last_bundle(folder) is not None, _of_last_incident),
)
# The plug for flight recordings: FileForm("flight recording", <recognise>, told.recordings.diagnose_recordings).
FILE_FORMS: tuple[FileForm, ...] = ()
# The plug for text: TextForm("stacks", formats.stack_text.looks_like_stacks, told.stacks.diagnose_stacks), then told.listings.
TEXT_FORMS: tuple[TextForm, ...] = ()


def weigh(answers: list[Diagnosis]) -> Diagnosis | None:
    """The answer that stands of several: what decides goes before what does not, then what names a cause, then the surer one."""
    return max(answers, key=_weight, default=None)


def _weight(answer: Diagnosis) -> tuple[bool, bool, int]:
    return answer.verdict != "undetermined", answer.cause not in {"unknown", "none"}, _SURENESS[answer.certainty]
