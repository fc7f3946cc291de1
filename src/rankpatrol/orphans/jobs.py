"""Who may say that a job has ended. One class an authority; whoever is silent proves nothing."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from rankpatrol.core.errors import CommandFailed
from rankpatrol.orphans.records import JobState, JobWord, ProcessSeen, RecordTie
from rankpatrol.orphans.run_records import RunRecords
from rankpatrol.system.command import run


class JobWords(Protocol):
    """An authority on jobs. Answers in bounded time; a job that it does not know is left out."""

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]: ...

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:
        """The record that ties this process to a job beside its cgroup, where this authority keeps such records."""
        ...


class RunJobs:
    """Jobs that `rankpatrol run` started: the shims' own records."""

    def __init__(self, records: RunRecords | None = None) -> None:
        self._records = records or RunRecords()

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]:
        return self._records.words(jobs)

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:
        return self._records.tie_of(process)


_LIVE = JobState.LIVE
_ENDED = JobState.ENDED
# Job state codes of squeue(1). COMPLETING still ends its processes; a requeued job lives; what is not here is UNKNOWN.
STATES = {
    "PENDING": _LIVE,
    "CONFIGURING": _LIVE,
    "RUNNING": _LIVE,
    "SUSPENDED": _LIVE,
    "STOPPED": _LIVE,
    "RESIZING": _LIVE,
    "SIGNALING": _LIVE,
    "STAGE_OUT": _LIVE,
    "COMPLETING": _LIVE,
    "REQUEUED": _LIVE,
    "REQUEUE_FED": _LIVE,
    "REQUEUE_HOLD": _LIVE,
    "SPECIAL_EXIT": _LIVE,
    "REVOKED": _LIVE,
    "RESV_DEL_HOLD": _LIVE,
    "COMPLETED": _ENDED,
    "CANCELLED": _ENDED,
    "FAILED": _ENDED,
    "TIMEOUT": _ENDED,
    "NODE_FAIL": _ENDED,
    "PREEMPTED": _ENDED,
    "BOOT_FAIL": _ENDED,
    "DEADLINE": _ENDED,
    "OUT_OF_MEMORY": _ENDED,
}
_FRESH_S = 1.0
_JOB_ID = re.compile(r"\d+")


class SlurmJobs:
    """Slurm, by its own commands: the controller's memory, and where that has forgotten a job, the accounting."""

    def __init__(self, *, deadline_s: float = 5.0) -> None:
        self._deadline_s = deadline_s
        self._heard: dict[str, tuple[float, JobWord]] = {}

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]:
        """One question a job and second: several orphans of one job are looked at together."""
        ours = sorted(job for job in jobs if _JOB_ID.fullmatch(job))
        for job in ours:
            if time.monotonic() - self._heard.get(job, (-_FRESH_S, None))[0] >= _FRESH_S:
                self._heard[job] = (time.monotonic(), self._word(job))
        return {job: self._heard[job][1] for job in ours}

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:  # ruff: ignore[ARG002] - the port's words
        """Slurm ties by cgroup alone."""
        return None

    def _word(self, job: str) -> JobWord:
        # No field that a user can fill in: a job's name may say anything.
        queue = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%A|%T|%U|%S|%e"]
        accounts = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=JobIDRaw,State,UID,Start,End"]
        refused = ""
        for command in (queue, accounts):
            answer = self._ask(command)
            rows = [] if isinstance(answer, str) else [fields for fields in answer if fields[0] == job]
            if len(rows) == 1:
                return _word_of(rows[0], command[0])
            refused = answer if isinstance(answer, str) else f"{command[0]} names {len(rows)} such jobs"
        return JobWord(job=job, state=JobState.UNKNOWN, by="Slurm", why=refused)

    def _ask(self, command: list[str]) -> list[list[str]] | str:
        try:
            done = run(command, deadline_s=self._deadline_s, environment={**os.environ, "SLURM_TIME_FORMAT": "%s"})
        except CommandFailed as problem:
            return str(problem)
        if done.exit_code != 0:
            return f"{command[0]}: {done.stderr.decode(errors='replace').strip()[:200] or f'exit code {done.exit_code}'}"
        return [fields for line in done.stdout.decode(errors="replace").splitlines() if len(fields := line.strip().split("|")) == 5]


def _word_of(fields: list[str], by: str) -> JobWord:
    job, state, uid, began, ended = fields
    known = STATES.get(state.split()[0].rstrip("+") if state else "", JobState.UNKNOWN)
    return JobWord(
        job=job,
        state=known,
        by=f"Slurm ({by})",
        started_unix_s=_time(began),
        ended_unix_s=_time(ended) if known is _ENDED else None,
        uid=int(uid) if uid.isdigit() else None,
        why="" if known is not JobState.UNKNOWN else f"its state {state!r} is not known here",
    )


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() else None


class EpilogJobs:
    """Slurm's own Epilog is the word: slurmd starts it when all steps of the job have ended here. No Slurm command is called.

    Slurm's advice for Prolog and Epilog (prolog_epilog.html): commands there load the controller and can stand in each other's way.
    """

    def __init__(self, job: str, environment: Mapping[str, str]) -> None:
        self.job = job
        self._told = environment.get("SLURM_SCRIPT_CONTEXT") == "epilog_slurmd" and environment.get("SLURM_JOB_ID") == job
        self._uid, self._began = environment.get("SLURM_JOB_UID", ""), environment.get("SLURM_JOB_START_TIME", "")
        self._ended_unix_s = time.time()

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]:
        if self.job not in jobs:
            return {}
        if not self._told:
            why = "SLURM_SCRIPT_CONTEXT and SLURM_JOB_ID do not show that slurmd runs this as the job's Epilog"
            return {self.job: JobWord(job=self.job, state=JobState.UNKNOWN, by="Slurm's Epilog", why=why)}
        word = JobWord(
            job=self.job,
            state=JobState.ENDED,
            by="Slurm's Epilog",
            started_unix_s=_time(self._began),
            ended_unix_s=self._ended_unix_s,
            uid=int(self._uid) if self._uid.isdigit() else None,
            grace_s=0.0,
        )
        return {self.job: word}

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:  # ruff: ignore[ARG002] - the port's words
        """Slurm ties by cgroup alone."""
        return None


class AllJobs:
    """Several authorities. Where two speak of one job, one that says that it lives is believed."""

    def __init__(self, authorities: Iterable[JobWords]) -> None:
        self._authorities = tuple(authorities)

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]:
        said: dict[str, JobWord] = {}
        for word in self._all(jobs):
            if word.job not in said or word.state is JobState.LIVE or said[word.job].state is JobState.UNKNOWN:
                said[word.job] = word
        return said

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:
        return next((tie for one in self._authorities if (tie := one.tie_of(process)) is not None), None)

    def _all(self, jobs: frozenset[str]) -> Iterator[JobWord]:
        for one in self._authorities:
            yield from one.words(jobs).values()
