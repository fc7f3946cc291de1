"""From where a command without shims starts: the placeholder and the variable that a shim would have filled in for it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rankpatrol.checkpoints.report import Selection
from rankpatrol.cli.words import say
from rankpatrol.core.errors import CommandFailed
from rankpatrol.launch.nodes import which_restart
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient, installed
from rankpatrol.schedulers.slurm_words import is_job_id
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.command import run as run_command

# Nobody waits but the user, and a start from nothing would cost more than reading the files.
_CHECK_S = 600.0
_MOST_BYTES = 16 << 20


def goes_on(*, asked: bool, environment: Mapping[str, str]) -> bool:
    """Whether the first attempt goes on from a checkpoint: a person says so, or Slurm has queued the job again.

    Whoever submits a job from a job hands it all variables: where Slurm answers, its own count is believed.
    """
    if asked or not which_restart(environment):
        return asked
    job = environment.get("SLURM_JOB_ID", "")
    if not is_job_id(job) or not installed():
        return True
    return SlurmJobs(SlurmClient(), SystemClock()).describe(job).restarts != 0


def newest_good_path(directory: Path) -> str:
    """The path of the newest good checkpoint, or an empty word where there is none; either is said."""
    if not directory.exists():  # the training makes it
        say(f"rankpatrol: no checkpoint to resume from: {directory} is not there yet", err=True)
        return ""
    say(f"rankpatrol: looks for the newest good checkpoint in {directory}", err=True)
    found = _look(directory)
    if isinstance(found, str):
        say(f"rankpatrol: no good checkpoint is known ({found}): the command starts from its own choice", err=True)
        return ""
    newer = f"; {found.rejected[0].sentence}" if found.rejected else ""
    if found.newest_good is None:
        say(f"rankpatrol: no good checkpoint in {directory}{newer}: the command starts from its own choice", err=True)
        return ""
    say(f"rankpatrol: resuming from {Path(found.newest_good.path).name}{newer}", err=True)
    return found.newest_good.path


def _look(directory: Path) -> Selection | str:
    """In a process that can be left behind with its file system, and without a thread here: `run` forks."""
    words = [sys.executable, "-P", "-m", "rankpatrol", "checkpoints", "latest", "--json", "--", os.fspath(directory)]
    try:
        done = run_command(words, deadline_s=_CHECK_S, max_bytes=_MOST_BYTES)
        return msgspec.json.decode(done.stdout, type=Selection)
    except CommandFailed as problem:
        return str(problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return done.stderr.decode(errors="replace").strip().partition("\n")[0] or "its directory could not be read"
