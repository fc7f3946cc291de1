"""Whether CMD runs still, by the launcher that the run directory names."""

from rankpatrol.launch.rundir import LauncherExit, RunDir
from rankpatrol.system.clock import Clock
from rankpatrol.system.process import has_ended, identify

# Whoever waits for CMD writes down at once how it ended.
_REAPED_S = 5.0


class LauncherWatch:
    """One job's launcher. A zombie that nobody reaps has ended: in a container whose first process reaps nobody, it stays one for good."""

    def __init__(self, run_dir: RunDir, clock: Clock) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._zombie_since_s: float | None = None

    def told(self) -> LauncherExit | None:
        """How CMD ended, where somebody has said so."""
        return self._run_dir.read("launcher_exit.json", LauncherExit)

    def gone(self) -> bool:
        """True where CMD is gone, or has been a zombie for longer than it takes to say how it ended."""
        launcher = self._run_dir.launcher()
        if launcher is None or not has_ended(launcher):
            self._zombie_since_s = None
            return False
        return identify(launcher.pid) != launcher or self._unreaped()

    def _unreaped(self) -> bool:
        now_s = self._clock.mono_s()
        self._zombie_since_s = now_s if self._zombie_since_s is None else self._zombie_since_s
        return now_s - self._zombie_since_s > _REAPED_S
