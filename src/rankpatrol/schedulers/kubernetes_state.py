"""A job of Kubernetes and its pods, told as one JobStatus. Pure."""

import hashlib

from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.schedulers.kubernetes_json import JobDoc, Owner, Pod, plain, unix_s_of
from rankpatrol.schedulers.kubernetes_words import ENDED, ENDING, KINDS, PHASES, QUEUE_LABEL, KubeJob, is_name

_MOST_STEPS = 64
_BETWEEN = "all its pods have ended, and its controller has made no others yet"
_TERMINAL = frozenset({"Completed", "Failed"})


def job_status(job: KubeJob, doc: JobDoc, pods: tuple[Pod, ...]) -> JobStatus:
    """What a controller's object and its pods say together. A job runs while any of its pods does."""
    state, said, reason = _state_of(doc, pods)
    policy = doc.spec.run_policy
    limit_s = doc.spec.active_deadline_seconds or (policy.active_deadline_seconds if policy else None)
    failed = sum(replica.failed or 0 for replica in (doc.status.replica_statuses or {}).values())
    return JobStatus(
        job=job.id,
        state=state,
        said=said,
        reason=reason,
        restarts=(doc.status.failed or 0) + (doc.status.restarts or 0) + failed + _container_restarts(pods),
        queued_unix_s=unix_s_of(doc.metadata.creation_timestamp),
        started_unix_s=_started(pods),
        ends_unix_s=unix_s_of(doc.status.completion_time),
        time_limit_s=None if limit_s is None else float(limit_s),
        nodes=nodes_of(pods),
        steps=_steps(pods),
        held=doc.is_suspended and state in {JobState.PENDING, JobState.ENDING},
        is_batch=True,
        may_requeue=True,
        may_hold=_may_hold(job, doc),
        part_of=_part_of(job, doc.metadata.controller),
        world_size=_world_size(pods),
        run=_run(doc.metadata.uid, pods),
    )


def pod_status(job: KubeJob, pod: Pod) -> JobStatus:
    """What one pod says of itself. It is made again by its controller, or by nobody."""
    state = PHASES.get(pod.status.phase, JobState.UNKNOWN)
    leaving = pod.metadata.deletion_timestamp is not None and state is not JobState.ENDED
    controlled = pod.metadata.controller is not None
    return JobStatus(
        job=job.id,
        state=JobState.ENDING if leaving else state,
        said="Terminating" if leaving else plain(pod.status.phase),
        reason=plain(pod.status.reason) or (_why_pending((pod,)) if state is JobState.PENDING else ""),
        restarts=_container_restarts((pod,)),
        queued_unix_s=unix_s_of(pod.metadata.creation_timestamp),
        started_unix_s=unix_s_of(pod.status.start_time),
        nodes=nodes_of((pod,)),
        steps=_steps((pod,)),
        is_batch=controlled,
        may_requeue=controlled,
        may_hold=False,
        part_of=_part_of(job, pod.metadata.controller),
        world_size=_world_size((pod,)),
        run=_run(pod.metadata.uid, (pod,)),
    )


def live(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Those that have not come to their end; a pod whose node is cut off stays among them."""
    return tuple(pod for pod in pods if PHASES.get(pod.status.phase) is not JobState.ENDED)


def staying(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Those live ones that nobody has told to go."""
    return tuple(pod for pod in live(pods) if pod.metadata.deletion_timestamp is None)


def nodes_of(pods: tuple[Pod, ...]) -> tuple[str, ...]:
    """Where the live ones are."""
    return tuple(dict.fromkeys(node for pod in live(pods) if (node := pod.spec.node_name) and is_name(node)))


def pod_in_words(pod: Pod) -> str:
    """For people: "train-x7k2p on gpu-1: Running"."""
    state = "Terminating" if pod.metadata.deletion_timestamp is not None else plain(pod.status.phase)
    return f"{plain(pod.metadata.name)} on {plain(pod.spec.node_name) or 'no node'}: {state}"


def _state_of(doc: JobDoc, pods: tuple[Pod, ...]) -> tuple[JobState, str, str]:
    ended = doc.holds(ENDED)
    if ended is not None:
        return JobState.ENDED, ended.type, _because(ended.reason, ended.message)
    if doc.status.terminal_state in _TERMINAL:
        return JobState.ENDED, doc.status.terminal_state, ""
    if doc.metadata.deletion_timestamp is not None:
        return JobState.ENDING, "Deleting", ""
    ending = doc.holds(ENDING)
    if ending is not None:
        return JobState.ENDING, ending.type, _because(ending.reason, ending.message)
    if doc.is_suspended:
        return (JobState.ENDING, "Suspending", "") if live(pods) else (JobState.PENDING, "Suspended", "")
    return _state_by_pods(pods)


def _state_by_pods(pods: tuple[Pod, ...]) -> tuple[JobState, str, str]:
    stay = staying(pods)
    running = [pod for pod in stay if pod.status.phase == "Running"]
    if running:
        rest = len(stay) - len(running)
        return JobState.RUNNING, "Running", f"{rest} of its {len(stay)} pods do not run: {_why_pending(stay)}" if rest else ""
    strange = [pod for pod in stay if pod.status.phase not in PHASES]
    if strange:
        return JobState.UNKNOWN, plain(strange[0].status.phase) or "no phase", f"its pod {pod_in_words(strange[0])}"
    if not stay and live(pods):
        return JobState.ENDING, "Terminating", ""
    return JobState.PENDING, "Pending", _why_pending(stay) if stay else _BETWEEN if pods else "its controller has made no pods yet"


def _why_pending(pods: tuple[Pod, ...]) -> str:
    """What its first waiting pod waits for."""
    for pod in pods:
        if pod.status.phase != "Pending":
            continue
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return _because(condition.reason, condition.message)
        for status in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())):
            if status.state is not None and status.state.waiting is not None:
                return _because(status.state.waiting.reason, status.state.waiting.message)
    return ""


def _because(reason: str | None, message: str | None) -> str:
    return plain(": ".join(part for part in (reason, message) if part))


def _container_restarts(pods: tuple[Pod, ...]) -> int:
    return sum(max(0, status.restart_count) for pod in pods for status in pod.status.container_statuses or ())


def _started(pods: tuple[Pod, ...]) -> float | None:
    return min((at for pod in staying(pods) if (at := unix_s_of(pod.status.start_time)) is not None), default=None)


def _steps(pods: tuple[Pod, ...]) -> tuple[str, ...]:
    told = tuple(pod_in_words(pod) for pod in live(pods)[:_MOST_STEPS])
    more = len(live(pods)) - len(told)
    return (*told, f"and {more} more") if more > 0 else told


def _run(uid: str, pods: tuple[Pod, ...]) -> str:
    """The object, and which pods carry it now: a job that was suspended and resumed counts no restart."""
    uids = sorted(pod.metadata.uid for pod in staying(pods))
    return f"{plain(uid)}/{hashlib.sha256(' '.join(uids).encode()).hexdigest()[:16]}"


def _may_hold(job: KubeJob, doc: JobDoc) -> bool:
    """batch/v1 writes its default for `suspend` into every Job since 1.22; before, the field would be dropped in silence."""
    if QUEUE_LABEL in (doc.metadata.labels or {}) or doc.metadata.controller is not None:
        return False
    return bool(job.kind.suspend) and (job.word != "job" or doc.spec.suspend is not None)


def _part_of(job: KubeJob, controller: Owner | None) -> str:
    """The id of what would make it again, where that is a kind that we know; else in the API's words."""
    if controller is None:
        return ""
    word = next((word for word, row in KINDS.items() if row.api_kind == controller.kind), None)
    if word is None or not is_name(controller.name):
        return plain(f"{controller.kind} {controller.name}")
    return KubeJob(namespace=job.namespace, word=word, name=controller.name).id


def _world_size(pods: tuple[Pod, ...]) -> int | None:
    """As their environment says it in plain numbers, all alike: WORLD_SIZE, or torchrun's nodes times processes."""
    told = {_size_of(pod) for pod in live(pods)}
    return told.pop() if len(told) == 1 else None


def _size_of(pod: Pod) -> int | None:
    for container in pod.spec.containers or ():
        values = {variable.name: variable.value for variable in container.env or ()}
        if (size := _count(values.get("WORLD_SIZE"))) is not None and "PET_NPROC_PER_NODE" not in values:
            return size
        nodes, each = _count(values.get("PET_NNODES")), _count(values.get("PET_NPROC_PER_NODE"))
        if nodes is not None and each is not None:
            return nodes * each
    return None


def _count(word: str | None) -> int | None:
    return int(word) if word is not None and word.isascii() and word.isdecimal() and 0 < len(word) <= 6 and word.strip("0") else None
