"""Puts a job that already runs into a run directory, as its shims would have done: from there on an agent patrols it like any other."""

import contextlib
import os
import socket
import time
from pathlib import Path

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import ProcessId
from rankpatrol.discover.records import FoundJob, FoundRank
from rankpatrol.launch.rundir import JobSpec, LauncherExit, RankPlace, Released, RunDir
from rankpatrol.launch.shim.naming import node_name
from rankpatrol.system.files import write_once
from rankpatrol.system.process import identify


class Attachment:
    """One job that was not started by us. A rank's number that comes back with another process is a new attempt."""

    def __init__(self, job: FoundJob, spec: JobSpec, node: str = "") -> None:
        """`node`: what its ranks' node is called, where that is not this host's own name (in a pod it is not)."""
        self._node = node or node_name()
        self.key, self.spec = job.key, spec
        self.run_dir = RunDir.create()
        self._attempt, self._placed = 0, dict[int, ProcessId]()
        pointer = {"run_dir": str(self.run_dir.path), **msgspec.to_builtins(spec)}
        try:
            self.run_dir.write("job.json", spec)
            write_once(Path(spec.job_dir) / "job.json", msgspec.json.format(msgspec.json.encode(pointer)))
            # Ranks that stand alone have nobody above them who would outlive each: then we say when all are gone.
            above = job.launcher or identify(os.getpid())
            if above is not None:
                self.run_dir.write("launcher.json", above)
        except OSError as problem:
            self.run_dir.remove()
            raise BadInput(f"the job cannot be written down: {problem.strerror} ({problem.filename})", help=_WRITABLE) from problem

    def register(self, job: FoundJob) -> None:
        """Take in the ranks that were found now."""
        if any(self._placed.get(rank.rank, rank.process) != rank.process for rank in job.ranks):
            self._attempt, self._placed = self._attempt + 1, {}
        if not self._placed:
            write_once(self.run_dir.path / "openings" / f"{self._attempt}.json", msgspec.json.encode({"group": job.together}))
        for rank in job.ranks:
            if rank.rank not in self._placed:
                self._placed[rank.rank] = rank.process
                self._write(rank)

    def over(self) -> None:
        """Let the agent say its last words."""
        with contextlib.suppress(OSError):
            self.run_dir.write("launcher_exit.json", LauncherExit(exit_code=None, ended_unix_s=time.time()))

    def _write(self, rank: FoundRank) -> None:
        name = f"{self._attempt}.{rank.rank}.json"
        self.run_dir.write(f"claims/{name}", Released(at_unix_s=time.time()))
        self._lead_to_log(rank)
        place = msgspec.structs.replace(
            registration_of(rank, rank.world_size),
            attempt=self._attempt,
            node=self._node,
            host=socket.gethostname(),
            started_unix_s=time.time(),
        )
        self.run_dir.write(f"ranks/{name}", place)

    def _lead_to_log(self, rank: FoundRank) -> None:
        """Where its output is a file, it is read there; several ranks often share one."""
        if rank.log_path is None:
            return
        link = Path(self.spec.job_dir) / "attempts" / str(self._attempt) / f"rank{rank.rank}.log"
        with contextlib.suppress(OSError):  # less is known then, and nothing else is lost
            link.parent.mkdir(parents=True, exist_ok=True)
            Path(link).symlink_to(rank.log_path)


_WRITABLE = "Nothing is watched. Name a folder you can write to, with free space: rankpatrol watch --job-dir DIR …"


def registration_of(rank: FoundRank, world_size: int) -> RankPlace:
    """A rank that was found, as a shim would have registered it."""
    return RankPlace(
        attempt=0,
        rank=rank.rank,
        local_rank=rank.local_rank,
        world_size=world_size,
        node="",
        # Nobody stands above it: when the rank itself is gone, nobody will say how it ended.
        shim_pid=rank.process.pid,
        shim_start_ticks=rank.process.start_ticks,
        pid=rank.process.pid,
        start_ticks=rank.process.start_ticks,
        torchrun_restarts=0,
        scheduler_restarts=0,
        started_unix_s=0.0,
    )
