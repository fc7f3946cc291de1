"""Jobs of a Slurm cluster, by id. Slurm takes orders for jobs that are over, and says 0 for ids that it never gave: we do not."""

from collections.abc import Callable

from msgspec.structs import replace

from rankpatrol.core.jobs import JobProcess, JobState, JobStatus
from rankpatrol.core.records import Missing, Record
from rankpatrol.schedulers.port import Avoid, changed
from rankpatrol.schedulers.slurm_client import SlurmClient, SlurmSilent
from rankpatrol.schedulers.slurm_pids import processes_of
from rankpatrol.schedulers.slurm_text import PastAttempt
from rankpatrol.schedulers.slurm_words import checked_job, checked_node, is_job_id
from rankpatrol.system.clock import Clock

_NOT_KNOWN = "Slurm does not know this job: it was never there, or ended longer ago than MinJobAge"
_SEVERAL = "this is an array of {count} jobs: name one of them, for example {one}"
_COMPONENTS = "this is a heterogeneous job of {count} components: name one of them, for example {one}"
_OF_SEVERAL = "it is one component of a heterogeneous job, which Slurm ends and queues as a whole: `{deed} {leader}`"
_SRUN_ONLY = "only batch jobs can be requeued, and this one was started by srun or salloc: submit it with sbatch"
_NO_REQUEUE = "it was submitted with --no-requeue: `scontrol update JobId={job} Requeue=1` allows it, then ask again"


class SlurmWaits(Record, frozen=True, kw_only=True):
    """How long a deed may take until it can be read back.

    `gone_s`: the end of a job takes SIGTERM, KillWait (30 s as shipped) and the epilogs.
    """

    gone_s: float = 120.0
    taken_s: float = 15.0
    poll_s: float = 0.5


class SlurmJobs:
    """The jobs that this user may see. Acting is by JobStatus: what has changed since it was seen is not touched."""

    name = "slurm"

    def __init__(self, client: SlurmClient, clock: Clock, waits: SlurmWaits | None = None) -> None:
        self._client, self._clock, self._waits = client, clock, waits or SlurmWaits()

    def describe(self, job: str) -> JobStatus:
        """Asked afresh, with steps and excluded nodes; UNKNOWN with the reason where there is no answer."""
        seen = self._look(job)
        if seen.state in {JobState.UNKNOWN, JobState.ENDED}:
            return seen
        avoided = self._client.avoided(job)
        return replace(seen, steps=self._client.steps(job), avoided=() if isinstance(avoided, Missing) else avoided)

    def earlier(self, job: str) -> tuple[PastAttempt, ...] | Missing:
        """Its runs that are over, each with its end and its nodes, by Slurm's accounting."""
        told = self._client.attempts(job)
        return told if isinstance(told, Missing) else tuple(run for run in told if run.ended_unix_s is not None)

    def processes(self, job: str) -> tuple[JobProcess, ...] | Missing:
        """Those on this node."""
        return processes_of(checked_job(job), lambda: self._client.pids(job))

    def terminate(self, seen: JobStatus) -> str:
        """By scancel; waits until it is over."""
        if refused := self._changed(seen) or _component(seen, "scancel"):
            return refused
        said = self._client.tell("scancel", seen.job)

        def over(now: JobStatus) -> bool:
            return now.state is JobState.ENDED or now.reason == _NOT_KNOWN

        return self._until(seen.job, over, self._waits.gone_s, said)

    def requeue(self, seen: JobStatus, *, held: bool, without: tuple[str, ...] = ()) -> str:
        """By scontrol requeue or requeuehold. Held: waits until it is off its nodes; else until the order is seen to be taken.

        Exclusions are refused of a running job, and taken while it ends. From inside the job that is a matter of milliseconds: its batch
        script dies of SIGTERM, and all that is left of it goes at once, whatever KillWait says; unless the script traps it, or became us.
        """
        wanted = self._exclusions(seen.job, without)
        if isinstance(wanted, Missing):
            return f"which nodes it avoids already cannot be read: {wanted.reason}"
        if refused := self._changed(seen) or _never(seen):
            return refused
        order = "requeuehold" if held else "requeue"
        if without:
            said = self._client.tell_together(f"{order} {seen.job}", f"update JobId={seen.job} ExcNodeList={','.join(wanted)}")
        else:
            said = self._client.tell("scontrol", order, seen.job)

        def taken(now: JobStatus) -> bool:
            return now.restarts is not None and seen.restarts is not None and now.restarts > seen.restarts

        def off_its_nodes(now: JobStatus) -> bool:
            return taken(now) and now.state is JobState.PENDING and now.held

        problem = self._until(seen.job, off_its_nodes if held else taken, self._waits.gone_s if held else self._waits.taken_s, said)
        return problem or (self._exclude(seen.job, without) if without else "")

    def avoid(self, job: str, nodes: tuple[str, ...], how: Avoid) -> str:
        """Exclude them from this job, or drain them for all jobs (which takes an operator's rights)."""
        names = tuple(checked_node(node) for node in nodes)
        return self._drain(job, names) if how == "drain" else self._exclude(job, names)

    def release(self, job: str) -> str:
        """By scontrol release, read back. A job that is not held is none of our business."""
        before = self._look(job)
        if before.state is not JobState.PENDING or not before.held:
            return f"it is not held: {before.said or before.reason}"
        said = self._client.tell("scontrol", "release", checked_job(job))
        return self._until(job, lambda now: now.state is not JobState.UNKNOWN and not now.held, self._waits.taken_s, said)

    def _look(self, job: str) -> JobStatus:
        if not is_job_id(job):
            return JobStatus(job=job, state=JobState.UNKNOWN, reason="this is not a Slurm job id")
        try:
            found = self._client.jobs([job])
        except SlurmSilent as problem:
            return JobStatus(job=job, state=JobState.UNKNOWN, reason=str(problem))
        if len(found) > 1:
            # Slurm tells of all components of a heterogeneous job, whichever is asked for.
            one = next((each for each in found if "+" in each.job and each.job == job), None)
            return one or JobStatus(job=job, state=JobState.UNKNOWN, reason=_which(found))
        return found[0] if found else JobStatus(job=job, state=JobState.UNKNOWN, reason=_NOT_KNOWN)

    def _changed(self, seen: JobStatus) -> str:
        return changed(seen, self._look(seen.job))

    def _exclude(self, job: str, nodes: tuple[str, ...]) -> str:
        wanted = self._exclusions(job, nodes)
        if isinstance(wanted, Missing):
            return f"which nodes it avoids already cannot be read: {wanted.reason}"
        said = self._client.tell("scontrol", "update", f"JobId={checked_job(job)}", f"ExcNodeList={','.join(wanted)}")
        now = self._client.avoided(job)
        if not isinstance(now, Missing) and set(nodes) <= set(now):
            return ""
        return said or "Slurm took the order, but the nodes are not excluded"

    def _exclusions(self, job: str, nodes: tuple[str, ...]) -> tuple[str, ...] | Missing:
        """An update replaces the list: the user's own exclusions stay in it."""
        if not nodes:
            return ()
        before = self._client.avoided(job)
        names = tuple(checked_node(node) for node in nodes)
        return before if isinstance(before, Missing) else tuple(dict.fromkeys((*before, *names)))

    def _drain(self, job: str, nodes: tuple[str, ...]) -> str:
        problems = []
        for node in nodes:
            why = f"Reason=rankpatrol: suspect in job {checked_job(job)}"
            said = self._client.tell("scontrol", "update", f"NodeName={node}", "State=DRAIN", why)
            state = self._client.node_state(node)
            if isinstance(state, Missing) or not state.startswith(("drain", "down")):
                problems.append(f"{node}: {said or (state.reason if isinstance(state, Missing) else state)}")
        return "; ".join(problems)

    def _until(self, job: str, come_true: Callable[[JobStatus], bool], deadline_s: float, said: str) -> str:
        """Read back until it has come true. `said`: what Slurm answered to the order; a refusal is not waited for."""
        until = self._clock.mono_s() + deadline_s
        now = self._look(job)
        while not come_true(now):
            silent = now.state is JobState.UNKNOWN
            if said and not silent:
                return said
            if self._clock.mono_s() >= until:
                if silent:
                    return f"whether it was done is not known: {now.reason or said}"
                return f"not done after {deadline_s:g} s: the job is {now.said}{f' ({now.reason})' if now.reason else ''}"
            self._clock.sleep(self._waits.poll_s)
            now = self._look(job)
        return ""


def _which(found: tuple[JobStatus, ...]) -> str:
    """That one of several has to be named."""
    several = _COMPONENTS if "+" in found[0].job else _SEVERAL
    return several.format(count=len(found), one=found[-1].job)


def _component(seen: JobStatus, deed: str) -> str:
    """Why nothing is done to one component of several, if it is one: the evidence is of it, and the deed would be of all."""
    leader, plus, _ = seen.job.partition("+")
    return _OF_SEVERAL.format(deed=deed, leader=leader) if plus else ""


def _never(seen: JobStatus) -> str:
    """Why this job can never be requeued, if so."""
    if why := _component(seen, "scontrol requeue"):
        return why
    if seen.is_batch is False:
        return _SRUN_ONLY
    return _NO_REQUEUE.format(job=seen.job) if seen.may_requeue is False else ""
