"""What the run directories of `rankpatrol run` say of a process: which rank it belonged to, and whether that rank is over."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.launch.rundir import JobSpec, LauncherExit, RankPlace, RunDir
from rankpatrol.orphans.records import Environment, JobState, JobWord, ProcessSeen, RecordTie
from rankpatrol.system.process import boot_id, identify

_BY = "its shim's record"
_ANSWERS_WITHIN_S = 1.0  # a local disk answers in milliseconds
T = TypeVar("T")


def place_of(session_id: int, start_ticks: int, rank: int | None, places: Sequence[RankPlace]) -> RankPlace | None:
    """The rank whose shim made this Unix session. Pure.

    The kernel gives a session's number to nobody else while the session has a member (alloc_pid() and free_pid(), kernel/pid.c), so of
    several ranks that wore the number it is the last that began before the process. The environment has to name the same rank.
    """
    fitting = [place for place in places if place.pid == session_id and place.start_ticks <= start_ticks and place.rank == rank]
    return max(fitting, key=lambda place: place.start_ticks, default=None)


class RunRecords:
    """Reads the run directories that processes' own environments name, and no others."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[RunDir, RankPlace]] = {}
        self._slow: set[str] = set()

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:
        """The rank that this process belonged to. The session is kept by the kernel; the environment only says where to look.

        It says so in its user's words: a folder that does not answer (a FIFO in it, a dead mount) is left behind, and not asked again.
        """
        environment = process.environment
        if isinstance(environment, Missing) or environment.run_dir is None or environment.run_dir in self._slow:
            return None
        return self._in_time(environment.run_dir, lambda: self._tie_of(process, environment))

    def _tie_of(self, process: ProcessSeen, environment: Environment) -> RecordTie | None:
        if environment.run_dir is None or not _belongs_to(environment.run_dir, process.uid):
            return None
        run_dir = RunDir(Path(environment.run_dir))
        spec = run_dir.read("job.json", JobSpec)
        place = place_of(process.session_id, process.id.start_ticks, environment.rank, run_dir.places())
        if spec is None or place is None or (place.host or place.node) != os.uname().nodename or _number_is_anothers(process, place):
            return None
        tie = RecordTie(job=spec.job, attempt=place.attempt, rank=place.rank)
        self._found[tie.key] = (run_dir, place)
        return tie

    def words(self, jobs: frozenset[str]) -> Mapping[str, JobWord]:
        """What is known now of those ranks that a tie was found to."""
        said = {key: self._word(key) for key in jobs if key in self._found}
        return {key: word for key, word in said.items() if word is not None}

    def _word(self, key: str) -> JobWord | None:
        run_dir, place = self._found[key]
        return self._in_time(str(run_dir.path), lambda: _word(key, run_dir, place))

    def _in_time(self, folder: str, read: Callable[[], T | None]) -> T | None:
        """What was read, or None where that takes too long."""
        answer: list[T | None] = []
        reader = threading.Thread(target=lambda: answer.append(read()), name="run-records", daemon=True)
        reader.start()
        reader.join(_ANSWERS_WITHIN_S)
        if not answer:
            self._slow.add(folder)
            return None
        return answer[0]


def _belongs_to(folder: str, uid: int) -> bool:
    """Only its own user's records count: anybody can make a folder and name a stranger's session in it."""
    try:
        return os.lstat(folder).st_uid == uid
    except OSError:
        return False


def _number_is_anothers(process: ProcessSeen, place: RankPlace) -> bool:
    """True where a living session leader is another process than the rank on record."""
    leader = identify(process.session_id)
    return leader is not None and leader.start_ticks != place.start_ticks


def _lives(pid: int, start_ticks: int) -> bool:
    seen = identify(pid)
    return seen is not None and seen.start_ticks == start_ticks


def _word(key: str, run_dir: RunDir, place: RankPlace) -> JobWord:
    """A rank lives while it or its shim does: a shim sweeps what its rank left, and no one else should meanwhile."""
    word = JobWord(job=key, state=JobState.LIVE, by=_BY, started_unix_s=place.started_unix_s)
    if _lives(place.pid, place.start_ticks) or _lives(place.shim_pid, place.shim_start_ticks):
        return word
    ended = run_dir.exit_of(place)
    if ended is None:
        return _over(key, place, None, 0.0, "without a word of its shim, which is gone as well")
    if ended.exit_status != 0:
        return _over(key, place, ended.ended_unix_s, 0.0, f"with status {ended.exit_status}")
    # What a rank leaves that ended well may be an uploader at work: only the end of the whole job makes it an orphan.
    whole = run_dir.read("launcher_exit.json", LauncherExit)
    if whole is not None:
        return _over(key, place, whole.ended_unix_s, None, "well, and so has its launcher")
    launcher = run_dir.launcher()
    return (
        word if launcher is None or launcher_lives(launcher) else _over(key, place, ended.ended_unix_s, None, "well, its launcher is gone")
    )


def launcher_lives(launcher: ProcessId) -> bool:
    """True while CMD runs on this boot."""
    return launcher.boot_id == boot_id() and identify(launcher.pid) == launcher


def _over(key: str, place: RankPlace, ended_unix_s: float | None, grace_s: float | None, how: str) -> JobWord:
    return JobWord(
        job=key,
        state=JobState.ENDED,
        by=_BY,
        started_unix_s=place.started_unix_s,
        ended_unix_s=ended_unix_s,
        grace_s=grace_s,
        why=how,
    )
