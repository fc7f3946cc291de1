"""This rank's place in the run directory: who we are, which attempt this is, where to resume from."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Dict, Optional

from rankpatrol.launch.shim.kernel import start_ticks
from rankpatrol.launch.shim.marks import Held
from rankpatrol.launch.shim.naming import node_name
from rankpatrol.launch.shim.output import say
from rankpatrol.launch.shim.placing import TOGETHER, Place

# The agent answers within a second; a dead one must not keep the training from starting.
RESUME_WAIT_S = 20.0
# Whatever is written there: a training is not kept from starting for longer.
PAUSE_MOST_S = 600.0
Json = Optional[Dict[str, Any]]


def write_once(path: str, record: dict[str, Any]) -> bool:
    """Create a file whole unless it is there; True where we were first."""
    scratch = f"{path}.{os.getpid()}.tmp"
    try:
        with open(scratch, "w", encoding="utf-8") as out:
            json.dump(record, out)
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
    return True


def read_json(path: str) -> Json:
    """A JSON file's content, or None where there is none yet."""
    try:
        with open(path, encoding="utf-8") as text:
            content = json.load(text)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def number_of(name: str, otherwise: int) -> int:
    """A count from the environment; what is no number is not there."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise


def is_left_behind(run_dir: str) -> bool:
    """True once CMD has gone and its user had ordered the end of all of it (launch/left_behind.py): nobody is there to end us."""
    return all(os.path.exists(os.path.join(run_dir, name)) for name in ("launcher_exit.json", "ending_for_good.json"))


class Desk:
    """One rank's files in the run directory, which lies on a local disk and is shared with the agent.

    Where the directory is gone, full or closed, the desk knows less, and the rank trains all the same.
    """

    def __init__(self, run_dir: str, place: Place, *, launcher_stays: bool = True) -> None:
        self.run_dir, self.rank, self._place = run_dir, place.rank, place
        self._launcher_stays = launcher_stays
        self.spec = read_json(os.path.join(run_dir, "job.json"))
        self.attempt = self._restarts = number_of("TORCHELASTIC_RESTART_COUNT", 0)
        self._said = False
        try:
            self._claim()
        except OSError as problem:
            self.not_seen(problem)

    def not_seen(self, problem: OSError) -> None:
        """Say once that this rank trains without patrol."""
        if not self._said:
            self._said = True
            say(f"rank {self.rank} is not seen by the patrol: {problem}")

    def _claim(self) -> None:
        """Count attempts ourselves: torchrun does not count changes of membership, and a second torchrun in one job starts at 0 again."""
        while not (self._is_our_group() and write_once(self._path("claims"), {"shim_pid": os.getpid()})):
            self.attempt += 1

    def _is_our_group(self) -> bool:
        """True where this attempt was opened by a rank that was started together with us, or is opened by us now."""
        group = {name: os.environ.get(name) for name in TOGETHER}
        us = {**group, "ranks": self._place.world_size, "restarts": self._restarts}
        path = os.path.join(self.run_dir, "openings", f"{self.attempt}.json")
        launcher = os.getppid()
        opener = {"launcher_pid": launcher, "launcher_start_ticks": start_ticks(launcher)}
        opener.update({"shim_pid": os.getpid(), "shim_start_ticks": start_ticks(os.getpid())})
        if write_once(path, {"group": us, **opener}):
            return True
        opened = read_json(path) or {}
        # A shell that starts its ranks in the background may have gone: then the rank that came first stands for it.
        whoever = ("launcher",) if self._launcher_stays else ("launcher", "shim")
        return opened.get("group") == us and any(_lives(opened, who) for who in whoever)

    def _path(self, room: str, ending: str = "json") -> str:
        return os.path.join(self.run_dir, room, f"{self.attempt}.{self.rank}.{ending}")

    def socket_path(self) -> str:
        """Where the agent speaks to this shim."""
        return self._path("shims", "sock")

    def wants_probe(self) -> bool:
        """True where the job is known and its user has not declined the probe."""
        return self.spec is not None and self.spec.get("probe", True) is True

    def wants_binding(self) -> bool:
        """True where the job is known and its user has not declined the binding."""
        return self.spec is not None and self.spec.get("bind", True) is True

    def probe_socket_path(self) -> str:
        """Where this rank's probe may let torch's worker server listen."""
        return self._path("probes", "sock")

    def log_path(self) -> str | None:
        """Where this rank's output is kept, or None where the job is not known."""
        job_dir = (self.spec or {}).get("job_dir")
        return os.path.join(job_dir, "attempts", str(self.attempt), f"rank{self.rank}.log") if job_dir else None

    def knows_no_checkpoints(self) -> bool:
        """True where the job is known to have none; its command's words are then left alone."""
        return self.spec is not None and not self.spec.get("checkpoints")

    def register(self, pid: int, held: Held | None = None) -> None:
        """Tell the agent who the rank is. Raises OSError."""
        record = {
            "attempt": self.attempt,
            "rank": self.rank,
            "local_rank": self._place.local_rank,
            "world_size": self._place.world_size,
            "node": node_name(),
            "host": os.uname().nodename,
            "shim_pid": os.getpid(),
            "shim_start_ticks": start_ticks(os.getpid()),
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "torchrun_restarts": self._restarts,
            "scheduler_restarts": number_of("SLURM_RESTART_COUNT", 0),
            "started_unix_s": time.time(),
            "marks_fd": None if held is None else held.marks_fd,
            "stacks_fd": None if held is None else held.stacks_fd,
            "probe_socket": None if held is None else self.probe_socket_path(),
        }
        write_once(self._path("ranks"), record)

    def ended(self, status: int, *, by_request: bool, at_unix_s: float) -> None:
        """Tell the agent how the rank ended. Raises OSError."""
        record = {"exit_status": status, "by_request": by_request, "ended_unix_s": at_unix_s}
        write_once(self._path("exits"), record)

    def released(self) -> bool:
        """True once the agent has taken the evidence of this attempt."""
        return os.path.exists(os.path.join(self.run_dir, f"released.{self.attempt}.json"))

    def agent_lives(self) -> bool:
        """True while the agent that wrote itself down still runs."""
        agent = read_json(os.path.join(self.run_dir, "agent.json")) or {}
        return agent.get("start_ticks") is not None and start_ticks(agent.get("pid") or 0) == agent["start_ticks"]

    def resume_from(self, wait_s: float) -> str:
        """The checkpoint this attempt starts from, or "". One answer for all its ranks: the first that was written down.

        The agent verifies and answers; when it is silent for `wait_s`, the newest checkpoint it had verified stands.
        """
        if not (self.spec or {}).get("checkpoints") or (self.attempt == 0 and self._starts_the_job()):
            return ""
        path = os.path.join(self.run_dir, "resume", f"{self.attempt}.json")
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            answer = read_json(path)
            if answer is not None:
                return answer.get("checkpoint") or ""
            time.sleep(0.05)
        known = read_json(os.path.join(self.run_dir, "newest_good.json")) or {}
        suspects = known.get("suspect_files") or []
        with contextlib.suppress(OSError):  # a full disk: all ranks read the same file instead
            write_once(
                path, {"checkpoint": known.get("checkpoint") or "", "step": known.get("step"), "by": "shim", "suspect_files": suspects}
            )
        return (read_json(path) or known).get("checkpoint") or ""

    def _starts_the_job(self) -> bool:
        """False where it goes on: the scheduler has queued it again, or this node may have joined others that run since long."""
        spec = self.spec or {}
        return not spec.get("resumes") and (spec.get("cluster") or {"first": True}).get("first", False)

    def suspect_files(self) -> str | None:
        """The data that held earlier attempts up, as a JSON list, or None where nothing is suspected."""
        found = self._start().get("suspect_files")
        return json.dumps(found) if isinstance(found, list) and found else None

    def pause(self, most_s: float) -> None:
        """Wait until this attempt may start. A signal that ends us ends the wait."""
        not_before = self._start().get("not_before_unix_s")
        if not isinstance(not_before, (int, float)):
            return
        wait_s = min(not_before - time.time(), most_s)
        if wait_s > 0:
            if self.rank == 0:
                say(f"attempt {self.attempt} starts in {wait_s:.0f} s: the last ones failed one soon after the other")
            time.sleep(wait_s)

    def _start(self) -> dict[str, Any]:
        """What is known of this attempt's start. Written before the attempt before it ended, so nobody waits for it."""
        return read_json(os.path.join(self.run_dir, "resume", f"{self.attempt}.json")) or {}


def _lives(opened: dict[str, Any], who: str) -> bool:
    started = opened.get(who + "_start_ticks")
    return started is not None and start_ticks(opened.get(who + "_pid") or 0) == started
