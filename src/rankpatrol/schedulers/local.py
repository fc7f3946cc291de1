"""torchrun on one machine: an attempt is ended through its shims, and torchrun itself starts the next one."""

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.starts import NextStart
from rankpatrol.launch.rundir import RankPlace, ResumePoint, RunDir
from rankpatrol.schedulers.port import EndReport
from rankpatrol.system.process import identify, is_hidden, send_signal

_ANSWER_S = 2.0
# After SIGKILL a process goes at once unless it is in D state; then nobody can end it, and the report says so.
_AFTER_KILL_S = 5.0
_POLL_S = 0.05


class LocalScheduler:
    """Speaks to the shims of one job on this machine."""

    name = "local"

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir

    def describe(self) -> dict[str, object]:
        """The launcher's process, and both counts of restarts beside ours."""
        places = self._run_dir.places()
        launcher = (self._run_dir.path / "launcher.json").read_bytes() if (self._run_dir.path / "launcher.json").exists() else b"null"
        return {
            "scheduler": self.name,
            "launcher": json.loads(launcher),
            "attempts": len(self._run_dir.claimed_attempts()),
            "torchrun_restarts": places[-1].torchrun_restarts if places else None,
        }

    def resume_from(self, start: NextStart) -> str:
        """Write the word down unless another stands already; the shims of that attempt read it before they start their ranks."""
        name = f"resume/{start.attempt}.json"
        point = ResumePoint(
            checkpoint=start.checkpoint,
            step=start.step,
            by="agent",
            suspect_files=start.suspect_files,
            not_before_unix_s=start.not_before_unix_s,
        )
        self._run_dir.write_first(name, point)
        standing = self._run_dir.read(name, ResumePoint)
        return start.checkpoint if standing is None else standing.checkpoint

    def end_job(self) -> str:
        """SIGTERM to the launcher, which `rankpatrol run` started: it ends its ranks in order and starts none."""
        launcher = self._run_dir.launcher()
        if launcher is None:
            return "the launcher's process is not known"
        try:
            send_signal(launcher, signal.SIGTERM)
        except (ProcessChanged, PermissionError) as problem:
            return str(problem)
        return ""

    def end_attempt(self, attempt: int, grace_s: float) -> EndReport:
        """Ask every shim of the attempt at once, then watch their ranks go."""
        places = [place for place in self._run_dir.places() if place.attempt == attempt]
        if not places:
            return EndReport(ended=(), failed={})
        with ThreadPoolExecutor(max_workers=min(16, len(places))) as pool:
            refused = dict(zip(places, pool.map(lambda place: self._ask(place, grace_s), places), strict=True))
        until = time.monotonic() + grace_s + _AFTER_KILL_S
        while any(self._lives(place) for place in places) and time.monotonic() < until:
            time.sleep(_POLL_S)
        alive = [place for place in places if self._lives(place)]
        return EndReport(
            ended=tuple(place.rank for place in places if place not in alive),
            failed={place.rank: refused[place] or "it did not end even by SIGKILL" for place in alive},
        )

    def _ask(self, place: RankPlace, grace_s: float) -> str:
        """An empty answer where the shim obeys, or why not."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(_ANSWER_S)
                line.connect(str(self._run_dir.socket_of(place)))
                line.sendall(json.dumps({"do": "end", "grace_s": grace_s}).encode())
                answer = json.loads(line.recv(4096))
        except (OSError, ValueError) as problem:
            return f"its shim does not answer: {problem}"
        return "" if answer.get("ok") else "its shim refused"

    def _lives(self, place: RankPlace) -> bool:
        if self._run_dir.exit_of(place) is not None:
            return False
        seen = identify(place.pid)
        return is_hidden(place.pid) if seen is None else seen.start_ticks == place.start_ticks
