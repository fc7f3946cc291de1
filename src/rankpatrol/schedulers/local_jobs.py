"""Jobs that `rankpatrol run` started on this machine, by job directory or by its name."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from rankpatrol.core.jobs import JobProcess, JobState, JobStatus
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.launch.rundir import JobSpec, OrderedEnd, RankPlace, RunDir
from rankpatrol.schedulers.local import LocalScheduler
from rankpatrol.schedulers.port import Avoid, changed
from rankpatrol.system.clock import Clock
from rankpatrol.system.process import boot_id, identify

_GRACE_S = 5.0
_POLL_S = 0.1
_ONE_MACHINE = "a job of `rankpatrol run` stays on its machine"


class LocalWaits(Record, frozen=True, kw_only=True):
    """torchrun gives its ranks 30 s to end, and looks at them once in a while before it starts others."""

    gone_s: float = 45.0
    restart_s: float = 45.0


class LocalJobs:
    """`root` is where jobs without a --job-dir lie."""

    name = "local"

    def __init__(self, clock: Clock, root: Path = Path("rankpatrol-runs"), waits: LocalWaits | None = None) -> None:
        self._clock, self._root, self._waits = clock, root, waits or LocalWaits()

    def describe(self, job: str) -> JobStatus:
        """Running while its launcher is there."""
        folder = self.folder(job)
        spec, run_dir = (None, None) if folder is None else (_spec(folder), self.run_dir(job))
        if folder is None or spec is None:
            return JobStatus(job=job, state=JobState.UNKNOWN, reason="no job directory of `rankpatrol run` has this name here")
        if run_dir is None:
            return JobStatus(job=str(folder), state=JobState.ENDED, said="ended")
        launcher = run_dir.launcher()
        if launcher is None or identify(launcher.pid) != launcher:
            return JobStatus(job=str(folder), state=JobState.ENDED, said="its launcher has ended")
        claimed = run_dir.claimed_attempts()
        places = _newest(run_dir)
        return JobStatus(
            job=str(folder),
            local_id=spec.job,
            state=JobState.RUNNING,
            said="its launcher runs",
            restarts=claimed[-1] if claimed else 0,
            started_unix_s=spec.started_unix_s,
            nodes=(socket.gethostname(),),
            is_batch=True,
            may_requeue=True,
            world_size=places[0].world_size if places else None,
        )

    def processes(self, job: str) -> tuple[JobProcess, ...] | Missing:
        """The ranks, as their shims registered them."""
        run_dir = self.run_dir(job)
        places = () if run_dir is None else _newest(run_dir)
        found = ((place, ProcessId(boot_id(), place.pid, place.start_ticks)) for place in places)
        alive = tuple(
            JobProcess(process=process, step=str(place.attempt), told_by="shim", rank=place.rank)
            for place, process in found
            if identify(process.pid) == process
        )
        return alive or Missing("no rank of the job runs here")

    def terminate(self, seen: JobStatus) -> str:
        """Tell the launcher, which `rankpatrol run` started, and wait until it is gone. Its agent hears that it was ordered."""
        run_dir = self.run_dir(seen.job)
        if (refused := changed(seen, self.describe(seen.job))) or run_dir is None:
            return refused
        run_dir.write_first("ending.json", OrderedEnd(signal="rankpatrol end", at_unix_s=self._clock.unix_s()))
        if problem := LocalScheduler(run_dir).end_job():
            return problem
        over = self._comes_true(lambda: self.describe(seen.job).state is JobState.ENDED, self._waits.gone_s)
        return "" if over else f"the launcher has not ended after {self._waits.gone_s:g} s"

    def requeue(self, seen: JobStatus, *, held: bool, without: tuple[str, ...] = ()) -> str:
        """End the attempt through its shims; the launcher starts the next one, where it has a restart left."""
        run_dir = self.run_dir(seen.job)
        if held or without:
            return f"{_ONE_MACHINE}, and cannot be held or moved"
        if (refused := changed(seen, self.describe(seen.job))) or run_dir is None:
            return refused
        report = LocalScheduler(run_dir).end_attempt(seen.restarts or 0, _GRACE_S)
        if report.failed:
            return "; ".join(f"rank {rank}: {why}" for rank, why in report.failed.items())

        def again() -> bool:
            now = self.describe(seen.job)
            return now.state is not JobState.RUNNING or (now.restarts or 0) > (seen.restarts or 0)

        if not self._comes_true(again, self._waits.restart_s):
            return f"the attempt was ended, but no other began within {self._waits.restart_s:g} s"
        return "" if self.describe(seen.job).state is JobState.RUNNING else "the attempt was ended, and its launcher started no other"

    def avoid(self, job: str, nodes: tuple[str, ...], how: Avoid) -> str:
        return f"{job} cannot avoid {', '.join(nodes)} ({how}): {_ONE_MACHINE}"

    def release(self, job: str) -> str:
        return f"{job} is not held: {_ONE_MACHINE}"

    def folder(self, job: str) -> Path | None:
        """The job directory that a user means; None where there is none."""
        for path in (Path(job), self._root / job):
            if "\0" not in job and (path / "job.json").is_file():
                return path.absolute()
        return None

    def has_other_nodes(self, job: str) -> bool:
        """True where this is one node's part of a job of several."""
        folder = self.folder(job)
        spec = None if folder is None else _spec(folder)
        return spec is not None and spec.cluster is not None

    def is_watched_only(self, job: str) -> bool:
        """True where somebody else started it, and rankpatrol only looks."""
        folder = self.folder(job)
        spec = None if folder is None else _spec(folder)
        return spec is not None and spec.attached

    def run_dir(self, job: str) -> RunDir | None:
        """Where the job's shims and agent meet; None once it is over."""
        folder = self.folder(job)
        pointer = None if folder is None else _pointer(folder)
        return RunDir(Path(pointer)) if pointer is not None and (Path(pointer) / "job.json").is_file() else None

    def _comes_true(self, seen: Callable[[], bool], deadline_s: float) -> bool:
        until = self._clock.mono_s() + deadline_s
        while not seen():
            if self._clock.mono_s() >= until:
                return False
            self._clock.sleep(_POLL_S)
        return True


def _newest(run_dir: RunDir) -> tuple[RankPlace, ...]:
    places = run_dir.places()
    return tuple(place for place in places if place.attempt == places[-1].attempt)


class _Pointer(Record, frozen=True):
    run_dir: str


def _pointer(folder: Path) -> str | None:
    try:
        return msgspec.json.decode((folder / "job.json").read_bytes(), type=_Pointer).run_dir
    except (OSError, msgspec.MsgspecError):
        return None


def _spec(folder: Path) -> JobSpec | None:
    try:
        return msgspec.json.decode((folder / "job.json").read_bytes(), type=JobSpec)
    except (OSError, msgspec.MsgspecError):
        return None
