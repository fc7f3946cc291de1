"""Ends or requeues a job because a person says so: the evidence is sealed first, then the job's own scheduler does it."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from rankpatrol.act.execute import Tell, execute
from rankpatrol.act.job_hands import JobHands
from rankpatrol.act.job_plan import RequeuePolicy, end_plan, requeue_plan
from rankpatrol.act.plan import ActionPlan, Verified
from rankpatrol.agent.checkpoint_watch import CheckpointWatch, verified
from rankpatrol.agent.end_evidence import Sight, seal_sight, see_found, see_local
from rankpatrol.agent.leases import kubernetes_lease, leased, local_lease, slurm_lease
from rankpatrol.core.errors import BadInput, ExitCode, PatrolError
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing, Record
from rankpatrol.evidence.bundle import IncidentRef, SealedBundle
from rankpatrol.launch.rundir import RunDir
from rankpatrol.schedulers.kubernetes import KubernetesJobs
from rankpatrol.schedulers.kubernetes_client import KubernetesClient
from rankpatrol.schedulers.kubernetes_words import cordon_advice, is_kubernetes_id, may_mean_kubernetes, parse_job
from rankpatrol.schedulers.local_jobs import LocalJobs
from rankpatrol.schedulers.port import JobScheduler
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient, installed
from rankpatrol.schedulers.slurm_pids import is_inside
from rankpatrol.schedulers.slurm_words import is_job_id
from rankpatrol.system.clock import Clock

_CHECK_S = 120.0


class JobUnknown(PatrolError):
    """The scheduler does not answer, or does not know the job."""

    help = "Nothing was done. Look at `squeue -j ID` and `scontrol ping`; a job of `rankpatrol run` is named by its job directory."
    exit_code = ExitCode.UNKNOWN


class Target(Record, frozen=True, kw_only=True):
    """The job that is meant, as it was seen.

    `inside`: we are a part of it; `can_hold`: its scheduler can hold it; `can_avoid`: it can be kept from nodes.
    """

    scheduler: JobScheduler
    status: JobStatus
    lease_folder: Path
    inside: bool
    can_hold: bool
    can_avoid: bool = True
    run_dir: RunDir | None = None


class Wish(Record, frozen=True, kw_only=True):
    """What is to be done with it. `avoid`: nodes to leave out, besides those of the culprits where `avoid_suspects`."""

    requeue: bool
    checkpoints: str | None = None
    avoid: tuple[str, ...] = ()
    avoid_suspects: bool = True
    drain: bool = False


class Case(Record, frozen=True, kw_only=True):
    """A job, what was seen of it, and what will be done."""

    target: Target
    sight: Sight
    plan: ActionPlan


def target_of(job: str, clock: Clock) -> Target:
    """The job of this id: one of Kubernetes, of `rankpatrol run` on this machine, else one of Slurm's. Raises BadInput or JobUnknown."""
    if is_kubernetes_id(job):
        return _in_kubernetes(job, clock)
    local = LocalJobs(clock)
    if (folder := local.folder(job)) is not None:
        if local.has_other_nodes(job):
            raise BadInput(f"the job of {folder} has several nodes, and from here only the ranks of this one can be ended", help=_A_PART)
        if local.is_watched_only(job):
            raise BadInput(f"the job of {folder} is only watched: rankpatrol did not start it, and does not end it", help=_WATCHED)
        status, run_dir = _running(local.describe(job)), local.run_dir(job)
        if run_dir is None:
            raise JobUnknown(f"the job of {folder} has just ended")
        return Target(scheduler=local, status=status, lease_folder=local_lease(run_dir), inside=False, can_hold=False, run_dir=run_dir)
    if not is_job_id(job) or not installed():
        raise BadInput(f"there is no job {job[:80]!r} here", help=_KUBERNETES if may_mean_kubernetes(job) else _WHICH)
    scheduler = SlurmJobs(SlurmClient(), clock)
    status = _running(scheduler.describe(job))
    return Target(
        scheduler=scheduler,
        status=status,
        lease_folder=slurm_lease(status.job),
        inside=is_inside(status.local_id),
        can_hold=True,
    )


def _in_kubernetes(job: str, clock: Clock) -> Target:
    named = parse_job(job)
    scheduler = KubernetesJobs(KubernetesClient(), clock)
    seen = scheduler.describe(named.id)
    if seen.state is JobState.UNKNOWN:
        raise JobUnknown(f"job {named.id}: {seen.reason or seen.said}", help="Nothing was done: what is not known is not ended.")
    if seen.state is JobState.PENDING:
        why = f"{seen.said}{f', {seen.reason}' if seen.reason else ''}"
        advice = f"`kubectl -n {named.namespace} delete {named.kind.plural} {named.name}` takes it away: there is no evidence."
        raise BadInput(f"job {named.id} does not run ({why})", help=advice)
    return Target(
        scheduler=scheduler,
        status=_running(seen),
        lease_folder=kubernetes_lease(named.id),
        inside=scheduler.is_inside(named.id),
        can_hold=seen.may_hold is True,
        can_avoid=False,
    )


def see(target: Target, clock: Clock) -> Sight:
    """What its ranks on this node are at; takes some seconds, and touches nobody."""
    if target.run_dir is not None:
        return see_local(target.status, target.run_dir, clock)
    return see_found(target.status, target.scheduler.processes(target.status.local_id or target.status.job), clock)


def plan_of(target: Target, sight: Sight, wish: Wish) -> ActionPlan:
    """The steps, in order; the very object that would be executed."""
    name = target.status.local_id if target.run_dir is not None else target.status.job
    if not wish.requeue:
        if above := target.status.part_of:
            raise BadInput(f"{above} would make {name} again", help=f"End all of it: --job {above}. To have this part anew: --requeue.")
        return end_plan(target.status, job=name)
    if (wish.avoid or wish.drain) and not target.can_avoid:
        by_hand = f"`{cordon_advice(wish.avoid)}` keeps all new pods from them; " if wish.avoid else ""
        raise BadInput("a job of Kubernetes cannot be kept from nodes", help=f"{by_hand}then again without --avoid and --drain.")
    suspects = sight.suspect_nodes() if wish.avoid_suspects and target.can_hold and target.can_avoid else ()
    policy = RequeuePolicy(
        avoid=tuple(dict.fromkeys((*wish.avoid, *suspects))),
        drain=wish.drain,
        checkpoints=wish.checkpoints,
        inside=target.inside,
        can_hold=target.can_hold,
    )
    return requeue_plan(target.status, policy, job=name)


def advice_of(target: Target, sight: Sight) -> str:
    """What a person could do besides, or nothing."""
    suspects = sight.suspect_nodes()
    if target.can_avoid or not suspects:
        return ""
    return f"suspect: {', '.join(suspects)}; `{cordon_advice(suspects)}` keeps all new pods from there"


def carry_out(case: Case, folder: Path, clock: Clock, tell_of: Callable[[SealedBundle], Tell]) -> bool:
    """Take the lease, seal, act. Raises PatrolError before anything is touched; False where a step was not done.

    `tell_of` is given the sealed evidence, and returns who is told of each step.
    """
    target, sight, plan = case.target, case.sight, case.plan
    # A patrol within the job restarts it in place by a lease of its own: it must not do so meanwhile.
    patrols = [local_lease(RunDir(Path(path))) for path in sight.patrolled_by if (Path(path) / "job.json").exists()]
    with contextlib.ExitStack() as held:
        lease = held.enter_context(leased(target.lease_folder, "rankpatrol end", clock))
        for folder_of_patrol in patrols:
            held.enter_context(leased(folder_of_patrol, "rankpatrol end", clock))
        of = IncidentRef(job=plan.job, attempt=plan.attempt, incident=plan.incident, onset_unix_s=clock.unix_s())
        asked = {"scheduler": target.scheduler.name, "status": msgspec.to_builtins(target.status), "plan": msgspec.to_builtins(plan)}
        bundle = seal_sight(folder / "incidents" / str(plan.incident), of, sight, asked, clock)
        hands = JobHands(scheduler=target.scheduler, checkpoint=_newest_good, why_not=lease.why_not)
        return execute(plan, bundle, hands, clock, tell_of(bundle))


_A_PART = (
    "Nothing was done: a part of a job is never ended. End all of it: `scancel ID` (or `rankpatrol end --job ID`) where Slurm runs it, "
    "else Ctrl-C or SIGTERM to `rankpatrol run` on every node."
)
_WATCHED = (
    "Nothing was done. End it where it was started, or by its id where a scheduler runs it: rankpatrol end --job ID. "
    "What its ranks are at can be kept before: rankpatrol capture --pid PID --out DIR."
)
_WHICH = (
    "Give a job directory, the name of one in rankpatrol-runs, (where Slurm's commands are) a Slurm job id, or k8s:NAMESPACE/KIND/NAME."
)
_KUBERNETES = "A job of Kubernetes is named k8s:NAMESPACE/KIND/NAME, for example k8s:default/job/train; a job directory by its path."


def _running(status: JobStatus) -> JobStatus:
    match status.state:
        case JobState.UNKNOWN:
            raise JobUnknown(f"job {status.job}: {status.reason or f'Slurm says {status.said}, which is not known here'}")
        case JobState.ENDED:
            raise BadInput(f"job {status.job} has ended ({status.said})", help="Nothing was done: what is over cannot be ended.")
        case JobState.ENDING:
            raise BadInput(f"job {status.job} is ending already ({status.said})", help="Nothing was done: look again in a minute.")
        case JobState.PENDING:
            raise BadInput(
                f"job {status.job} does not run yet ({status.said})", help="`scancel` takes it from the queue: there is no evidence."
            )
        case _:
            return status


def _newest_good(directory: str) -> Verified | Missing:
    selection = CheckpointWatch(directory).now(_CHECK_S)
    if isinstance(selection, Missing):
        return selection
    return verified(selection) or Missing(f"no good checkpoint in {directory}")
