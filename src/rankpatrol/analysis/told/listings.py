"""The answer to listings: topologies, checkpoint folders, processes and GPUs."""

import msgspec

from rankpatrol.analysis.told.checkpoint_listing import diagnose_checkpoints
from rankpatrol.analysis.told.gpu_work import diagnose_gpus
from rankpatrol.analysis.told.orphans import diagnose_processes
from rankpatrol.analysis.told.topology import diagnose_topology
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.formats.stack_text import read_stacks

# Ten thousand files or processes are a megabyte: what is longer is a log, and is not read line by line for this.
_LONGEST = 1 << 20
_LONGEST_ROW = 4096
_FORMS = (diagnose_topology, diagnose_checkpoints, diagnose_processes, diagnose_gpus)


def diagnose_listing(text: str) -> Diagnosis | None:
    """What a listing says, by the first form that knows it; None for anything else."""
    if len(text) > _LONGEST or _shows_python(text):
        return None
    # No tool prints rows as long as these, but for counts of all ranks in one.
    text = "\n".join(line for line in text.splitlines() if len(line) <= _LONGEST_ROW or "AllReduce" in line) + "\n"
    found = next((found for form in _FORMS if (found := form(text)) is not None), None)
    return _with_counters(found, diagnose_gpus(text)) if found is not None and found.verdict == "undetermined" else found


def _with_counters(found: Diagnosis, gpus: Diagnosis | None) -> Diagnosis:
    """What does not tell whose a process is may still show counters of GPUs, as nvidia-smi prints them above its processes."""
    if gpus is None or gpus.sentence == found.sentence or gpus.verdict != "undetermined":
        return found
    return msgspec.structs.replace(
        found,
        sentence=f"{gpus.sentence}; {found.sentence}",
        reasons_against=(*found.reasons_against, *gpus.reasons_against),
        suggested=(*gpus.suggested, *found.suggested),
    )


def _shows_python(text: str) -> bool:
    """True for a dump of Python stacks, whatever stands between them: what ranks are at says more than any list beside it."""
    told = read_stacks(text)
    return told is not None and any(thread.frames for process in told.processes for thread in process.threads)
