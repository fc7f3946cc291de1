"""This rank's place in the run directory: who we are, which attempt this is, where to resume from."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Optional

from rankpatrol.launch.shim.kernel import start_ticks

# The agent answers within a second; a dead one must not keep the training from starting.
RESUME_WAIT_S = 20.0
Json = Optional[Dict[str, Any]]


def write_once(path: str, record: dict[str, Any]) -> bool:
    """Create a file whole unless it is there; True where we were first."""
    scratch = f"{path}.{os.getpid()}.tmp"
    with open(scratch, "w", encoding="utf-8") as out:
        json.dump(record, out)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
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


class Desk:
    """One rank's files in the run directory, which lies on a local disk and is shared with the agent. Raises OSError where it is gone."""

    def __init__(self, run_dir: str, rank: int) -> None:
        self.run_dir, self.rank = run_dir, rank
        self.spec = read_json(os.path.join(run_dir, "job.json")) or {}
        self.attempt = self._claim()

    def _claim(self) -> int:
        """Count attempts ourselves: torchrun does not count changes of membership, and a second torchrun in one job starts at 0 again."""
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        while not write_once(self._path("claims", attempt, "json"), {"shim_pid": os.getpid()}):
            attempt += 1
        return attempt

    def _path(self, room: str, attempt: int, ending: str) -> str:
        return os.path.join(self.run_dir, room, f"{attempt}.{self.rank}.{ending}")

    def socket_path(self) -> str:
        """Where the agent speaks to this shim."""
        return self._path("shims", self.attempt, "sock")

    def log_path(self) -> str:
        """Where this rank's output is kept; its folder is made."""
        folder = os.path.join(self.spec.get("job_dir") or self.run_dir, "attempts", str(self.attempt))
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, f"rank{self.rank}.log")

    def register(self, pid: int) -> None:
        """Tell the agent who the rank is."""
        record = {
            "attempt": self.attempt,
            "rank": self.rank,
            "local_rank": int(os.environ.get("LOCAL_RANK") or 0),
            "world_size": int(os.environ.get("WORLD_SIZE") or 1),
            "node": os.uname().nodename,
            "shim_pid": os.getpid(),
            "shim_start_ticks": start_ticks(os.getpid()),
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "torchrun_restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
            "scheduler_restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            "started_unix_s": time.time(),
        }
        write_once(self._path("ranks", self.attempt, "json"), record)

    def ended(self, status: int, *, by_request: bool) -> None:
        """Tell the agent how the rank ended."""
        record = {"exit_status": status, "by_request": by_request, "ended_unix_s": time.time()}
        write_once(self._path("exits", self.attempt, "json"), record)

    def resume_from(self) -> str:
        """The checkpoint this attempt starts from, or "". One answer for all its ranks: the first that was written down.

        The agent verifies and answers; when it is silent for RESUME_WAIT_S, the newest checkpoint it had verified stands.
        """
        if self.attempt == 0 or not self.spec.get("checkpoints"):
            return ""
        path = os.path.join(self.run_dir, "resume", f"{self.attempt}.json")
        until = time.monotonic() + RESUME_WAIT_S
        while time.monotonic() < until:
            answer = read_json(path)
            if answer is not None:
                return answer.get("checkpoint") or ""
            time.sleep(0.05)
        known = read_json(os.path.join(self.run_dir, "newest_good.json")) or {}
        write_once(path, {"checkpoint": known.get("checkpoint") or "", "step": known.get("step"), "by": "shim"})
        return (read_json(path) or {}).get("checkpoint") or ""
