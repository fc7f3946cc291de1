"""The scheduler of a job on several nodes: each node's ranks are ended by their own shims, all at once."""

from concurrent.futures import ThreadPoolExecutor

from rankpatrol.agent.nodes.others import Others
from rankpatrol.agent.nodes.wire import StartNext
from rankpatrol.core.starts import NextStart
from rankpatrol.launch.rundir import ResumePoint, RunDir
from rankpatrol.schedulers.local import LocalScheduler
from rankpatrol.schedulers.port import EndReport

# Of the interval at which a node tells its state.
_LATE_INTERVALS = 3.0


class JoinedScheduler:
    """This node's scheduler and the others' (schedulers.port.Scheduler)."""

    name = "local"

    def __init__(self, run_dir: RunDir, others: Others) -> None:
        self._run_dir, self._others = run_dir, others
        self._own = LocalScheduler(run_dir)
        self._start: NextStart | None = None
        self._know_it: frozenset[str] = frozenset()
        self._repeated: int | None = None

    def describe(self) -> dict[str, object]:
        lines = self._others.lines()
        return {**self._own.describe(), **({"nodes": lines} if lines else {})}

    def resume_from(self, start: NextStart) -> str:
        """The others are told what stands here, so that all start from the same. Raises OSError."""
        standing = self._own.resume_from(start)
        self._start = start if standing == start.checkpoint else NextStart(attempt=start.attempt, checkpoint=standing)
        self._tell(self._start)
        return standing

    def remind(self) -> None:
        """Tell it to nodes that are heard only now: at a job's first start, and where one joins."""
        if self._start is not None and self._heard() - self._know_it:
            self._tell(self._start)

    def _tell(self, start: NextStart) -> None:
        heard = self._heard()
        not_told = self._others.start_next(start, self._run_dir.group_of(start.attempt), self._run_dir.group_of(start.attempt - 1))
        self._know_it = heard - not_told.keys()

    def _heard(self) -> frozenset[str]:
        heard = ((line, line.heard_ago_s) for line in self._others.lines() if line.heard_ago_s is not None)
        return frozenset(line.node for line, ago_s in heard if ago_s < _LATE_INTERVALS * line.every_s)

    def repeat(self, attempt: int) -> None:
        """Have the others told again how this attempt starts, whoever said it: an agent before us, or our shims when nobody had."""
        point = None if attempt == self._repeated else self._run_dir.read(f"resume/{attempt}.json", ResumePoint)
        if point is None:
            return
        self._repeated = attempt
        start = NextStart(
            attempt=attempt,
            checkpoint=point.checkpoint,
            step=point.step,
            suspect_files=point.suspect_files,
            not_before_unix_s=point.not_before_unix_s,
        )
        self._others.greet_with(start=StartNext(start=start, group=self._run_dir.group_of(attempt), after=None))

    def end_job(self) -> str:
        """Torchrun ends its ranks in order; its peers on other nodes are told the same, since they would wait for it."""
        problems = (self._own.end_job(), self._others.end_job())
        return "; ".join(problem for problem in problems if problem)

    def end_attempt(self, attempt: int, grace_s: float) -> EndReport:
        with ThreadPoolExecutor(max_workers=1) as pool:
            elsewhere = pool.submit(self._others.end_attempt, self._run_dir.group_of(attempt), grace_s)
            here = self._own.end_attempt(attempt, grace_s)
            there = elsewhere.result()
        return EndReport(ended=(*here.ended, *there.ended), failed={**here.failed, **there.failed}, beyond=there.beyond)
