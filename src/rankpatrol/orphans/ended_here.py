"""Which Slurm jobs have ended on this node, by the word of their own Epilogs: a Prolog, which may ask no Slurm command, goes by it."""

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.orphans.records import JobState, JobWord, ProcessSeen, RecordTie
from rankpatrol.orphans.state import is_ours
from rankpatrol.system.files import read_plain, write_atomic
from rankpatrol.system.process import boot_id, ticks_now

_JOB_ID = re.compile(r"\d{1,20}")
_KEPT_S = 30 * 86400.0


class EndedJob(Record, frozen=True, kw_only=True):
    """One job whose Epilog ran here. `ended_ticks` counts from the boot, as processes' starts do: no clock that is set can move it."""

    job: str
    boot_id: str
    ended_ticks: int
    ended_unix_s: float
    started_unix_s: float | None
    uid: int | None


class EndedHere:
    """The Epilogs' words, one file a job: Epilogs run side by side. `grace_s` is None where the policy's holds."""

    def __init__(self, folder: Path, *, grace_s: float | None = None) -> None:
        self._folder, self._grace_s = folder, grace_s

    def remember(self, word: JobWord) -> str:
        """Keep an Epilog's own word. Returns why it could not be kept, or an empty word."""
        if word.state is not JobState.ENDED or word.ended_unix_s is None:
            return ""
        ended = EndedJob(
            job=word.job,
            boot_id=boot_id(),
            ended_ticks=ticks_now(),
            ended_unix_s=word.ended_unix_s,
            started_unix_s=word.started_unix_s,
            uid=word.uid,
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(self._folder / f"{word.job}.json", msgspec.json.encode(ended))
            self._forget_old()
        except OSError as problem:
            return f"{problem.filename}: {problem.strerror}"
        return ""

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]:
        return {word.job: word for word in self._words(jobs)}

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:  # ruff: ignore[ARG002] - the port's words
        """Slurm ties by cgroup alone."""
        return None

    def _words(self, jobs: frozenset[str]) -> Iterator[JobWord]:
        for job in sorted(jobs) if is_ours(self._folder) else ():
            if not _JOB_ID.fullmatch(job):
                continue
            try:
                ended = msgspec.json.decode(read_plain(self._folder / f"{job}.json", 4096), type=EndedJob)
            except (OSError, PatrolError, msgspec.MsgspecError):
                continue
            if ended.boot_id == boot_id() and ended.job == job:
                yield JobWord(
                    job=job,
                    state=JobState.ENDED,
                    by="Slurm's Epilog",
                    started_unix_s=ended.started_unix_s,
                    ended_unix_s=ended.ended_unix_s,
                    uid=ended.uid,
                    grace_s=self._grace_s,
                    of_older_than_ticks=ended.ended_ticks,
                )

    def _forget_old(self) -> None:
        for path in self._folder.glob("*.json"):
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink(missing_ok=True)
