"""A Slurm job that runs on other nodes: the same command, started there as a step of the job (`srun --overlap`), beside its ranks."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence

from rankpatrol.cli.words import say
from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient, installed
from rankpatrol.schedulers.slurm_words import is_job_id, why_waiting
from rankpatrol.system.clock import SystemClock

# Set where we were started by ourselves: whoever sees no rank there does not hop on.
_HOPPED = "RANKPATROL_ELSEWHERE"


def go_to_job(job: str, words_for: Callable[[str], Sequence[str]]) -> None:
    """Become `srun … rankpatrol WORDS` on the job's nodes; `words_for` is given the id that its processes wear.

    Returns where that would not help; raises BadInput where the job does not run.
    """
    if _HOPPED in os.environ or not is_job_id(job) or not installed() or shutil.which("srun") is None:
        return
    seen = SlurmJobs(SlurmClient(), SystemClock()).describe(job)
    if seen.state is JobState.PENDING:
        raise BadInput(f"job {job} does not run yet: {why_waiting(seen.reason)}", help="Look again when it runs: squeue -j ID")
    if seen.state is not JobState.RUNNING or not seen.nodes:
        raise BadInput(f"job {job}: {seen.reason or seen.said}", help="A job that runs can be watched; `sacct -j ID` tells of older ones.")
    say(f"rankpatrol: job {job} runs on {', '.join(seen.nodes)}: watching there, as a step of it (srun --overlap)", err=True)
    os.execvpe("srun", step_of(seen, words_for(seen.local_id)), {**os.environ, _HOPPED: "1"})  # ruff: ignore[S606] - no shell is wanted


def step_of(seen: JobStatus, words: Sequence[str]) -> list[str]:
    """The step's command: one of us on each node, sharing what the job holds; lines begin with their node's number, but for JSON."""
    place = [f"--jobid={seen.local_id}", f"--nodes={len(seen.nodes)}", "--ntasks-per-node=1", f"--ntasks={len(seen.nodes)}"]
    manners = ["--overlap", "--mpi=none", "--kill-on-bad-exit=0", "--input=none"]
    label = [] if "--json" in words else ["--label"]
    return ["srun", *place, *manners, *label, sys.executable, "-m", "rankpatrol", *words]
