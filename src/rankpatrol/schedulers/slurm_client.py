"""Slurm's commands, each with a deadline and without a shell. What is said is read by slurm_text; nothing is decided here."""

import os
import subprocess
from collections.abc import Iterable

from rankpatrol.core.errors import CommandFailed, PatrolError
from rankpatrol.core.jobs import JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.schedulers.slurm_text import (
    AVOIDED_FORMAT,
    JOBS_FORMAT,
    SACCT_FORMAT,
    STEPS_FORMAT,
    PastAttempt,
    read_attempts,
    read_avoided,
    read_jobs,
    read_steps,
)
from rankpatrol.schedulers.slurm_words import checked_job, checked_node
from rankpatrol.system.command import CommandResult, run

# A command whose slurmctld is frozen gives up by itself after 20 s (MessageTimeout, twice); nobody should wait that long for an answer.
CALL_S = 8.0
_MOST_BYTES = 32 << 20
_NOT_KNOWN = "Invalid job id specified"
# A user's defaults for squeue (SQUEUE_STATES, SQUEUE_USERS …) would hide jobs from us.
_HIDING = ("SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_")


class SlurmSilent(PatrolError):
    """Slurm did not answer, so nothing is known of its jobs."""

    help = "Look at `scontrol ping` and `sinfo`. Jobs go on without slurmctld; nothing is ended while it does not answer."


def installed() -> bool:
    """True where Slurm's commands are here."""
    return any(os.access(os.path.join(folder, "squeue"), os.X_OK) for folder in os.environ.get("PATH", "").split(os.pathsep))  # ruff: ignore[PTH118] - names on PATH


class SlurmClient:
    """Asks and tells. Every id and name is checked before it is put on a command line."""

    def __init__(self, *, call_s: float = CALL_S) -> None:
        self._call_s = call_s

    def jobs(self, wanted: Iterable[str]) -> tuple[JobStatus, ...]:
        """Those of these jobs that Slurm knows (it forgets ended ones after MinJobAge), in one query. Raises SlurmSilent."""
        ids = ",".join(checked_job(job) for job in wanted)
        if not ids:
            return ()
        answer = self._ask("squeue", "-h", "-a", "-t", "all", "-j", ids, "-O", JOBS_FORMAT)
        text = answer.stdout.decode(errors="replace")
        if answer.exit_code != 0 and not _is_unknown(answer):
            raise SlurmSilent(f"squeue: {_said(answer)}")
        return read_jobs(text)

    def avoided(self, job: str) -> tuple[str, ...] | Missing:
        """The nodes that the job may not be given."""
        try:
            answer = self._ask("squeue", "-h", "-a", "-t", "all", "-j", checked_job(job), "-o", AVOIDED_FORMAT)
        except SlurmSilent as problem:
            return Missing(str(problem))
        found = read_avoided(answer.stdout.decode(errors="replace"))
        return next(iter(found.values())) if answer.exit_code == 0 and len(found) == 1 else Missing(f"squeue: {_said(answer)}")

    def steps(self, job: str) -> tuple[str, ...]:
        """The job's running steps; none where they cannot be learned."""
        try:
            answer = self._ask("squeue", "-h", "-s", "-j", checked_job(job), "-o", STEPS_FORMAT)
        except SlurmSilent:
            return ()
        return read_steps(answer.stdout.decode(errors="replace")) if answer.exit_code == 0 else ()

    def attempts(self, job: str) -> tuple[PastAttempt, ...] | Missing:
        """The job's runs by Slurm's accounting, oldest first, the present one last; Missing where a site keeps none. Some seconds late."""
        try:
            answer = self._ask("sacct", "-n", "-P", "-X", "--duplicates", "-j", checked_job(job), "-o", SACCT_FORMAT)
        except SlurmSilent as problem:
            return Missing(str(problem))
        if answer.exit_code != 0:
            return Missing(f"sacct: {_said(answer)}")
        return read_attempts(answer.stdout.decode(errors="replace"))

    def node_state(self, node: str) -> str | Missing:
        """The node's state in Slurm's words, for example `drained` or `idle*` (it does not answer)."""
        try:
            answer = self._ask("sinfo", "-h", "-N", "-n", checked_node(node), "-o", "%T")
        except SlurmSilent as problem:
            return Missing(str(problem))
        words = answer.stdout.decode(errors="replace").split()
        return words[0] if answer.exit_code == 0 and words else Missing(f"sinfo: {_said(answer) or 'no such node'}")

    def pids(self, job: str) -> str | Missing:
        """`scontrol listpids`: the local slurmd's word, which needs no slurmctld."""
        try:
            answer = self._ask("scontrol", "listpids", checked_job(job))
        except SlurmSilent as problem:
            return Missing(str(problem))
        return answer.stdout.decode(errors="replace")

    def tell(self, *words: str) -> str:
        """One scontrol or scancel command; empty where Slurm took it, else what it said (it may have taken it even so: read back)."""
        try:
            answer = self._ask(*words)
        except SlurmSilent as problem:
            return str(problem)
        return "" if answer.exit_code == 0 else _said(answer) or f"{words[0]} failed with {answer.exit_code}"

    def tell_together(self, *lines: str) -> str:
        """Several scontrol commands from one process, one right after another; no word in them may hold a blank of its own.

        Measured on 22.05: the second is with slurmctld within 2 ms of the first one's answer; a process of its own takes 15 to 20 ms.
        """
        with open(os.memfd_create("scontrol"), "wb+", buffering=0) as script:  # ruff: ignore[PTH123] - a descriptor, not a path
            script.write("".join(f"{line}\n" for line in lines).encode())
            script.seek(0)
            try:
                answer = self._ask("scontrol", stdin=script.fileno())
            except SlurmSilent as problem:
                return str(problem)
        return _said(answer)

    def _ask(self, *words: str, stdin: int = subprocess.DEVNULL) -> CommandResult:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_HIDING)}
        environment.update(SLURM_TIME_FORMAT="%s", LC_ALL="C")
        try:
            return run(words, deadline_s=self._call_s, max_bytes=_MOST_BYTES, environment=environment, stdin=stdin)
        except CommandFailed as problem:
            raise SlurmSilent(f"no answer from Slurm: {problem}") from problem


def _is_unknown(answer: CommandResult) -> bool:
    return _NOT_KNOWN in answer.stderr.decode(errors="replace")


def _said(answer: CommandResult) -> str:
    """The last line that it wrote to stderr."""
    lines = answer.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
