"""One process before the decision table: the questions that its rows ask. Pure."""

import msgspec

from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Missing
from rankpatrol.orphans.history import NEVER, History, Sight, is_blocked
from rankpatrol.orphans.nvml_words import trusted
from rankpatrol.orphans.records import Environment, GpuProcess, HomeKind, JobState, JobWord, Policy, ProcessSeen, Scan

# Start ticks count 10 ms, wall clocks are slewed, and schedulers write whole seconds.
_CLOCKS_DIFFER_S = 2.0


class Case(msgspec.Struct, frozen=True):
    """One process, all that the scan knows, and what earlier scans saw of it."""

    process: ProcessSeen
    scan: Scan
    history: History
    policy: Policy

    @property
    def sight(self) -> Sight:
        return self.history.sights.get(self.process.id, NEVER)

    @property
    def holds(self) -> tuple[str, ...]:
        """Its open device files: the kernel's word. What could not be read is not held."""
        return () if isinstance(self.process.devices, Missing) else self.process.devices

    @property
    def environment(self) -> Environment:
        """What its environment says, or nothing."""
        return Environment() if isinstance(self.process.environment, Missing) else self.process.environment

    def at_home(self, kind: HomeKind) -> bool:
        return not isinstance(self.process.home, Missing) and self.process.home.kind is kind

    @property
    def home_id(self) -> str:
        return "" if isinstance(self.process.home, Missing) else self.process.home.id

    @property
    def owner(self) -> JobWord | None:
        """The word on the job that a record or the cgroup ties it to; None where nothing ties it.

        The record speaks first: a session that our shim made is inside whatever job or login `rankpatrol run` was started in.
        """
        if self.process.tie is not None:
            return self._word(self.process.tie.key)
        return self._word(self.home_id) if self.at_home(HomeKind.JOB) else None

    @property
    def claimed(self) -> JobWord | None:
        """The word on the job that its environment names."""
        return None if self.environment.job is None else self._word(self.environment.job)

    def _word(self, job: str) -> JobWord:
        silent = JobWord(job=job, state=JobState.UNKNOWN, by="nobody", why="no scheduler was asked")
        word = self.scan.jobs.get(job, silent)
        if word.of_older_than_ticks is not None and self.process.id.start_ticks >= word.of_older_than_ticks:
            return JobWord(job=job, state=JobState.UNKNOWN, by=word.by, why="it began after that word, so the job may run again")
        return word

    @property
    def tie(self) -> str:
        """What ties it to its job, for people."""
        if self.process.tie is not None:
            return f"it is in the Unix session {self.process.session_id} that rank {self.process.tie.rank}'s shim made"
        return f"its cgroup is that of job {self.home_id}"

    def blocked(self) -> bool:
        return is_blocked(self.process)

    def stuck(self) -> bool:
        """The letter D is no proof: a vfork parent shows it too. D over minutes is, or a SIGKILL that is not taken."""
        sight, now = self.sight, self.scan.at_unix_s
        since, pending = sight.blocked_since_unix_s, sight.kill_pending_since_unix_s
        for_long = sight.blocked_scans >= self.policy.stuck_scans and since is not None and now - since >= self.policy.stuck_for_s
        return self.blocked() and (for_long or (pending is not None and now - pending > self.policy.kill_pending_s))

    def named_by_nvml(self) -> bool:
        """True where a list of NVML that can be believed names it."""
        return any(one.pid == self.process.id.pid for one in self._named())

    def mps_client(self) -> bool:
        """True where it may be one: to be spared, any sign is enough."""
        listed = any(one.pid == self.process.id.pid and one.mps for one in self._named())
        served = bool({self.process.uid, 0} & self.scan.mps_uids)
        return listed or self.environment.mps or served

    def _named(self) -> list[GpuProcess]:
        lists = [trusted(gpu, self.scan) for gpu in (() if isinstance(self.scan.gpus, Missing) else self.scan.gpus)]
        return [one for named in lists if not isinstance(named, Missing) for one in named]

    def started_in_run_of(self, word: JobWord) -> bool:
        """True where it began while the job ran; a job id that is used again, or requeued, has another start."""
        began, ended = word.started_unix_s, word.ended_unix_s
        started = self.process.started_unix_s
        return (began is None or started >= began - _CLOCKS_DIFFER_S) and (ended is None or started <= ended + _CLOCKS_DIFFER_S)

    def started_before(self, word: JobWord) -> bool:
        return word.started_unix_s is not None and self.process.started_unix_s < word.started_unix_s - _CLOCKS_DIFFER_S

    def ended_ago_s(self, word: JobWord) -> float | None:
        """Since when the job has ended; None where its authority gave no time."""
        return None if word.ended_unix_s is None else self.scan.at_unix_s - word.ended_unix_s

    def grace_s(self, word: JobWord) -> float:
        return self.policy.grace_s if word.grace_s is None else word.grace_s

    def grace_over(self, word: JobWord) -> bool:
        """A job whose end has no time is never past its grace, unless its authority asks for none."""
        ago_s = self.ended_ago_s(word)
        return word.grace_s == 0 or (ago_s is not None and ago_s >= self.grace_s(word))

    def say_ended(self, word: JobWord) -> str:
        ago_s = self.ended_ago_s(word)
        when = "" if ago_s is None else f" {say_duration(max(0.0, ago_s))} ago"
        return f"{word.by} says that job {word.job} ended{when}{', ' if word.why else ''}{word.why}"
