"""The agent's two ways of looking: light, once a second, and close, when something is odd."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rankpatrol.agent.roster import Attempt
from rankpatrol.collect.logs import LogTail
from rankpatrol.collect.processes import process_tree, sample_process
from rankpatrol.collect.ranks import RankRecord, observe, with_stacks
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import LogSample, RankSample, Snapshot
from rankpatrol.judge.records import RankActivity
from rankpatrol.system.clock import Clock

# Threads that a process group starts in its member, by backend: without ptrace, for any user, they tell that a rank has joined.
_GROUP_THREADS = frozenset({"gloo_tcp_loop", "pt_gloo_runloop", "pt_nccl_watchdg", "pt_nccl_heartbt", "pt_nccl_runhook"})
_STACKS_S = 8.0
_LOOKS_KEPT = 6


class Eyes:
    """What was seen of one attempt."""

    def __init__(self, job: str, job_dir: Path, clock: Clock) -> None:
        self._job, self._job_dir, self._clock = job, job_dir, clock
        self._logs: dict[int, LogTail] = {}
        self._steps: dict[int, int] = {}
        self.looks: deque[Snapshot] = deque(maxlen=_LOOKS_KEPT)

    def light(self, attempt: Attempt) -> tuple[RankActivity, ...]:
        """One light round: a few files of /proc and the end of a log for each rank."""
        return tuple(self._activity(record) for record in attempt.records(self._job_dir))

    def look(self, attempt: Attempt, *, full: bool = False) -> Snapshot:
        """One close round: every rank and descendant with its stack; `full` lists open files as well."""
        tree = process_tree()
        records = attempt.records(self._job_dir)
        samples = [with_stacks(self._with_log(record, observe(record, tree, full=full)), _STACKS_S) for record in records]
        snapshot = Snapshot(
            job=self._job,
            attempt=attempt.number,
            at_mono_s=self._clock.mono_s(),
            at_unix_s=self._clock.unix_s(),
            world_size=attempt.world_size(),
            ranks=tuple(samples),
        )
        self.looks.append(snapshot)
        return snapshot

    def best_step(self) -> int | None:
        """The highest step any log has named in this attempt."""
        return max(self._steps.values(), default=None)

    def calm(self) -> None:
        """Nothing is odd any more: earlier looks explain nothing of what comes."""
        self.looks.clear()

    def _activity(self, record: RankRecord) -> RankActivity:
        seen = Missing("ended") if record.exit_status is not None else sample_process(record.process.pid, with_files=False)
        if isinstance(seen, Missing) or seen.id != record.process:
            return _ended(record.rank, self._steps.get(record.rank))
        log = self._read_log(record)
        if isinstance(log, LogSample) and log.step is not None:
            self._steps[record.rank] = log.step
        return RankActivity(
            rank=record.rank,
            ended=False,
            joined=not _GROUP_THREADS.isdisjoint(seen.thread_names),
            traced=seen.tracer_pid != 0,
            stopped=seen.state == "T",
            main_thread_ticks=seen.main_thread_ticks,
            switches=seen.voluntary_switches + seen.involuntary_switches,
            step=self._steps.get(record.rank),
        )

    def _with_log(self, record: RankRecord, sample: RankSample) -> RankSample:
        return msgspec.structs.replace(sample, log=self._read_log(record))

    def _read_log(self, record: RankRecord) -> LogSample | Missing:
        return self._logs.setdefault(record.rank, LogTail(record.log_path)).read()


def _ended(rank: int, step: int | None) -> RankActivity:
    return RankActivity(rank=rank, ended=True, joined=False, traced=False, stopped=False, main_thread_ticks=0, switches=0, step=step)


def all_joined(activities: Iterable[RankActivity]) -> bool:
    """True when every rank is a member of a process group."""
    return all(activity.joined for activity in activities)
