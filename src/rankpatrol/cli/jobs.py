"""Finds a job by its directory, and reads what its agent last said of it."""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.cli.job_state import JobState, UnixTime
from rankpatrol.config.resolve import Sources, resolve, values
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import BadInput, NoPermission, PatrolError
from rankpatrol.core.plain import plain
from rankpatrol.core.records import Record
from rankpatrol.evidence.reading import last_bundle
from rankpatrol.launch.outlived import NOTE
from rankpatrol.launch.rundir import JobSpec, RunDir, run_dir_folders
from rankpatrol.system.files import read_plain
from rankpatrol.system.process import identify

# Longer than ranks take to start, but for a large cluster's.
_YOUNG_S = 60.0
SEEN_WHERE = "A rank is seen where torchrun or `rankpatrol shim` starts it."
# The agent writes its state once a second; much older than that, it is not running.
STALE_S = 10.0
# A state of ten thousand ranks has some MB.
_MOST_BYTES = 64 << 20
# Of what is deep enough, msgspec's decoder says so with a RecursionError.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Started(Record, frozen=True):
    started_unix_s: UnixTime


def find_job(job_dir: Path | None) -> Path:
    """The job directory that was named, or the newest one here. Raises BadInput."""
    if job_dir is not None:
        if not _is_there(job_dir / "job.json"):
            raise BadInput(f"{job_dir} is not a job directory", help="Give the folder that `rankpatrol run` named in its first line.")
        return job_dir
    jobs: Path = values(resolve(Sources.here(), {}))["jobs_dir"]
    found = sorted((since_s, path) for path in jobs.glob("*/job.json") if (since_s := _changed_unix_s(path)) is not None)
    if not found:
        raise BadInput("there is no job here", help="Start one with `rankpatrol run torchrun …`, or give a job directory.")
    return found[-1][1].parent


def newest_bundle() -> Path:
    """The evidence of the last incident of the newest job here. Raises BadInput where nothing was sealed."""
    job = find_job(None)
    found = last_bundle(job)
    if found is None:
        raise BadInput(f"the newest job here, {job}, has no sealed evidence", help="Give the bundle's folder, such as JOBDIR/incidents/1.")
    return found


def read_state(folder: Path) -> tuple[JobState, dict[str, Any]]:
    """The job's last state, typed, and all of it as it was written. Raises BadInput where there is none, or where it cannot be read."""
    path = folder / "state.json"
    try:
        whole = msgspec.json.decode(read_plain(path, _MOST_BYTES), type=dict[str, Any])
        return msgspec.convert(whole, JobState), whole
    except FileNotFoundError:
        raise not_told_yet(folder, "state") from None
    except NoPermission:
        raise _closed(folder) from None
    except _UNREADABLE as problem:
        raise BadInput(f"{path} cannot be read: {problem}", help="Was it edited? `events.jsonl` has the story.") from problem


def not_told_yet(folder: Path, what: str) -> BadInput:
    """What is written once ranks are there is not there: the job is young, or its ranks are started past us."""
    problem = f"{folder} has no {what} yet: no rank was seen"
    since_s = _running_for_s(folder)
    if since_s is None or since_s < _YOUNG_S:
        return BadInput(problem, help=f"The agent writes it within seconds of the ranks' start; look again. {SEEN_WHERE}")
    return BadInput(f"{problem} in {say_duration(since_s)}", help=SEEN_WHERE)


def _running_for_s(folder: Path) -> float | None:
    try:
        return time.time() - msgspec.json.decode(read_plain(folder / "job.json", _MOST_BYTES), type=_Started).started_unix_s
    except (OSError, PatrolError, *_UNREADABLE):
        return None


def run_dir_of(folder: Path) -> RunDir:
    """The run directory of a job that runs on this machine. Raises BadInput where the job is over, or runs elsewhere."""
    try:
        told = msgspec.json.decode(read_plain(folder / "job.json", _MOST_BYTES), type=dict[str, Any])
    except (OSError, *_UNREADABLE) as problem:
        raise BadInput(f"{folder / 'job.json'} cannot be read: {problem}", help="Give the job directory of a running job.") from problem
    named, cluster = told.get("run_dir"), told.get("cluster")
    if not isinstance(named, str) or not named or "\0" in named:
        raise BadInput(f"{folder / 'job.json'} names no run directory", help="Give the job directory of a running job.")
    path = Path(named)
    if not _is_there(path / "job.json"):
        raise BadInput(
            f"the job of {folder} does not run here: its run directory {path} is gone",
            help=f"It has ended, or it runs on another machine: type this there. {_say_where(cluster)}",
        )
    if _is_there(path / NOTE):
        raise BadInput(
            f"the job of {folder} is over", help=f"A process of it lives on, and {path} is the record of whose it is: rankpatrol orphans"
        )
    return RunDir(path)


def _say_where(cluster: Any) -> str:
    """Of a job on several nodes, the first one takes words."""
    if isinstance(cluster, dict) and isinstance(cluster.get("node"), str):
        return f"This job's first node is {plain(cluster['node'])}."
    return "`rankpatrol status` tells which."


def run_dir_named(job: str) -> RunDir:
    """The run directory of a job by its job directory, by the name of one in jobs-dir, or by its id. Raises BadInput, NoPermission.

    The id works while the job directory hangs; where several jobs have it, none is taken.
    """
    jobs: Path = values(resolve(Sources.here(), {}))["jobs_dir"]
    for folder in (Path(job), jobs / job):
        if _is_there(folder / "job.json"):
            return run_dir_of(folder)
    found = [path for folder in run_dir_folders() for path in Path(folder).glob("rankpatrol-*") if _runs_as(job, path)]
    if len(found) > 1:
        raise BadInput(f"{len(found)} jobs have the id {job!r}", help="Give the job directory of the one that is meant.")
    if not found:
        raise BadInput(f"no job {job!r} runs here", help="Give its job directory or its id; `ls rankpatrol-runs` lists jobs.")
    return RunDir(found[0])


def _runs_as(job: str, path: Path) -> bool:
    """The folder of run directories is everybody's: what another user has put there under our job's name is not ours to write into."""
    run_dir = RunDir(path)
    spec, launcher = run_dir.read("job.json", JobSpec), run_dir.launcher()
    if spec is None or spec.job != job or launcher is None or identify(launcher.pid) != launcher:
        return False
    return path.stat().st_uid == os.getuid()


def _is_there(path: Path) -> bool:
    """Raises NoPermission where its folder does not let us look."""
    try:
        path.stat()
    except PermissionError:
        raise _closed(path.parent) from None
    except (OSError, ValueError):  # not there, a loop of links, a name that no file can have
        return False
    return True


def _changed_unix_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _closed(folder: Path) -> NoPermission:
    return NoPermission(f"{folder} is closed to this user", help="Run it as the user who started the job, or as root.")
