"""The answer to listings: topologies, checkpoint folders, processes and GPUs."""

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
    return next((found for form in _FORMS if (found := form(text)) is not None), None)


def _shows_python(text: str) -> bool:
    """True for a dump of Python stacks, whatever stands between them: what ranks are at says more than any list beside it."""
    told = read_stacks(text)
    return told is not None and any(thread.frames for process in told.processes for thread in process.threads)
