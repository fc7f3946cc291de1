"""Data that a next attempt should beware of: what stuck loader processes were reading. Pure."""

from collections.abc import Iterable

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.starts import SuspectFile

# A rank blocked in a file of its own (a log, a checkpoint) says nothing of the data.
_DATA_CAUSES = frozenset({"data_loader_worker_stuck"})
# Handed on in an environment variable, which every child process inherits: the last ones are enough.
SUSPECTS_MOST = 32


def suspect_file(diagnosis: Diagnosis) -> SuspectFile | None:
    """The file that the loader process of this diagnosis was reading, or None where there was none or it is not known."""
    if diagnosis.cause not in _DATA_CAUSES or diagnosis.file is None:
        return None
    return SuspectFile(file=diagnosis.file, offset_bytes=diagnosis.file_offset_bytes)


def suspect_files(diagnoses: Iterable[Diagnosis]) -> tuple[SuspectFile, ...]:
    """Each place once, the oldest first; of very many the last."""
    found = (suspect_file(diagnosis) for diagnosis in diagnoses)
    return tuple(dict.fromkeys(each for each in found if each is not None))[-SUSPECTS_MOST:]
