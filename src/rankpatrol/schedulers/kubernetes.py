"""Jobs of a Kubernetes cluster: Job, JobSet, TrainJob, PyTorchJob, and single pods.

An order names the very object that was seen (its uid, and its version where it is a controller's), so the API itself refuses one that
comes too late. Nothing is deleted without grace: a pod on a node that is cut off stays, and so may its processes.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from rankpatrol.core.errors import BadInput, PatrolError
from rankpatrol.core.jobs import JobProcess, JobState, JobStatus
from rankpatrol.core.records import Missing, Record
from rankpatrol.schedulers.kubernetes_client import Answer, KubernetesClient, own_namespace
from rankpatrol.schedulers.kubernetes_json import JobDoc, Pod, plain, read_object
from rankpatrol.schedulers.kubernetes_pids import pod_around_us, processes_of
from rankpatrol.schedulers.kubernetes_state import job_status, live, pod_in_words, pod_status, staying
from rankpatrol.schedulers.kubernetes_words import KubeJob, cordon_advice, is_name, parse_job, release_command
from rankpatrol.schedulers.port import Avoid, changed
from rankpatrol.system.clock import Clock

_CONFLICTS = frozenset({409, 422})  # a precondition does not hold any more
_NO_HOLD = "nothing was done: it cannot be held; Kueue or another controller has its switch, or the API server does not know `suspend`"
_TROUBLE = 500  # the API's own: a 504 may well have been carried out
_TRIES = 5
_AT_ONCE = 8


class KubernetesWaits(Record, frozen=True, kw_only=True):
    """How long a deed may take until it can be read back. `gone_s`: pods are given 30 s to end unless they ask for more."""

    gone_s: float = 120.0
    taken_s: float = 15.0
    poll_s: float = 1.0


class Scene(Record, frozen=True, kw_only=True):
    """One look: the controller's object (None for a single pod), its pods, and what they say together."""

    job: KubeJob
    doc: JobDoc | None
    pods: tuple[Pod, ...]
    status: JobStatus


class KubernetesJobs:
    """The jobs that this user may see. What has changed since it was seen is not touched."""

    name = "kubernetes"

    def __init__(self, client: KubernetesClient, clock: Clock, waits: KubernetesWaits | None = None) -> None:
        self._client, self._clock, self._waits = client, clock, waits or KubernetesWaits()
        self._deleted: dict[str, str] = {}

    def describe(self, job: str) -> JobStatus:
        """Asked afresh; UNKNOWN with the reason where there is no answer."""
        seen = self._look(job)
        return seen.status if isinstance(seen, Scene) else seen

    def processes(self, job: str) -> tuple[JobProcess, ...] | Missing:
        """Those on this node, or in this pod."""
        seen = self._look(job)
        if not isinstance(seen, Scene):
            return Missing(seen.reason)
        return processes_of(live(seen.pods), pod_around_us(seen.pods, own_namespace()))

    def is_inside(self, job: str) -> bool:
        """True where this very process runs in one of its pods."""
        seen = self._look(job)
        return isinstance(seen, Scene) and pod_around_us(seen.pods, own_namespace()) is not None

    def terminate(self, seen: JobStatus) -> str:
        """Delete the object, and with it all that it owns; waits until that is gone. A pod that would be made again is not deleted."""
        if seen.part_of:
            return f"nothing was done: {seen.part_of} would make it again; end that, or requeue this"
        now = self._unchanged(seen)
        if not isinstance(now, Scene):
            return now
        order = self._client.delete_job
        refused = self._delete_pods(now) if now.doc is None else self._order(seen, lambda scene, doc: order(scene.job, doc))
        if refused:
            return refused
        self._deleted[seen.job] = "deleted"
        return self._until(seen.job, lambda after: _is_gone(after, seen), self._waits.gone_s)

    def requeue(self, seen: JobStatus, *, held: bool, without: tuple[str, ...] = ()) -> str:
        """Held: the job is suspended, and off its nodes when this returns. Else its pods are deleted, each by its uid: they are made again.

        Pods that are deleted count as failed (backoffLimit), those of a suspended job do not.
        """
        if without:
            return self.avoid(seen.job, without, "exclude")
        if seen.may_requeue is False:
            return f"nothing was done: no controller would make {seen.job} again"
        if not held:
            now = self._unchanged(seen)
            if not isinstance(now, Scene):
                return now
            gone = {pod.metadata.uid for pod in now.pods}
            if refused := self._delete_pods(now):
                return refused
            if now.doc is None:
                self._deleted[seen.job] = f"deleted; {seen.part_of} makes another"
            return self._until(seen.job, lambda after: _without(after, gone), self._waits.taken_s)
        if not seen.may_hold:
            return _NO_HOLD
        return self._switch(seen, on=True) or self._until(seen.job, _is_off, self._waits.gone_s)

    def avoid(self, job: str, nodes: tuple[str, ...], how: Avoid) -> str:
        """A job that has started takes no exclusions, and to cordon a node takes rights over the cluster: a person does it."""
        names = tuple(node for node in nodes if is_name(node))
        return f"{job} cannot be kept from nodes here ({how}); for all jobs: {cordon_advice(names)}"

    def release(self, job: str) -> str:
        """Resume it, read back. A job that is not held is none of our business."""
        before = self._look(job)
        if not isinstance(before, Scene) or not before.status.held:
            return f"it is not held: {_say(before)}"
        return self._switch(before.status, on=False) or self._until(
            job, lambda after: isinstance(after, Scene) and after.doc is not None and not after.doc.is_suspended, self._waits.taken_s
        )

    def _look(self, job: str) -> Scene | JobStatus:
        """A Scene, or why there is none."""
        try:
            named = parse_job(job)
        except BadInput as problem:
            return JobStatus(job=job, state=JobState.UNKNOWN, reason=str(problem))
        try:
            return self._scene(named)
        except PatrolError as problem:
            return JobStatus(job=named.id, state=JobState.UNKNOWN, reason=f"{problem}. {problem.help}")

    def _scene(self, job: KubeJob) -> Scene | JobStatus:
        if job.word == "pod":
            pod = self._client.pod(job)
            if isinstance(pod, Missing):
                return self._absent(job, pod)
            return Scene(job=job, doc=None, pods=(pod,), status=pod_status(job, pod))
        doc = self._client.job(job)
        if isinstance(doc, Missing):
            return self._absent(job, doc)
        pods = self._pods(job, doc)
        return Scene(job=job, doc=doc, pods=pods, status=job_status(job, doc, pods))

    def _absent(self, job: KubeJob, missing: Missing) -> JobStatus:
        """What we have deleted ourselves is over, and not unknown."""
        if job.id in self._deleted:
            return JobStatus(job=job.id, state=JobState.ENDED, said=self._deleted[job.id])
        return JobStatus(job=job.id, state=JobState.UNKNOWN, reason=missing.reason)

    def _pods(self, job: KubeJob, doc: JobDoc) -> tuple[Pod, ...]:
        """Those that wear its label and are its own: anybody may put a label on anything."""
        owners = self._owners(job, doc)
        for selector in job.selectors:
            found = self._client.pods(job.namespace, selector)
            own = tuple(pod for pod in found if _owner_of(pod) in owners and is_name(pod.metadata.name) and pod.metadata.uid)
            if own:
                return own
        return ()

    def _owners(self, job: KubeJob, doc: JobDoc) -> frozenset[str]:
        """The uids of whatever makes its pods: itself, or the Jobs that are made for it."""
        if job.word not in {"jobset", "trainjob"}:
            return frozenset({doc.metadata.uid})
        above = doc.metadata.uid
        if job.word == "trainjob":
            below = self._client.job(replace(job, word="jobset"))
            if isinstance(below, Missing) or below.metadata.controller is None or below.metadata.controller.uid != above:
                return frozenset()
            above = below.metadata.uid
        jobs = self._client.jobs(job.namespace, job.selectors[0])
        return frozenset(each.metadata.uid for each in jobs if each.metadata.controller and each.metadata.controller.uid == above)

    def _unchanged(self, seen: JobStatus) -> Scene | str:
        """The job as it is now, or why it may not be touched."""
        now = self._look(seen.job)
        return changed(seen, now.status if isinstance(now, Scene) else now) or _scene_or_why(now)

    def _switch(self, seen: JobStatus, *, on: bool) -> str:
        """Suspend or resume it."""

        def order(scene: Scene, doc: JobDoc) -> Answer:
            answer = self._client.change(scene.job, doc, scene.job.kind.suspend, value=on)
            # Fields that a server does not know are dropped, and it says 200.
            dropped = not answer.why and read_object(answer.body, JobDoc).is_suspended is not on
            return replace(answer, code=200, why="200, but this API server does not know `suspend`") if dropped else answer

        return self._order(seen, order, held=not on)

    def _order(self, seen: JobStatus, order: Callable[[Scene, JobDoc], Answer], *, held: bool = False) -> str:
        """Give an order for the object as it is now; where the object moves on meanwhile, look again and decide again."""
        said = ""
        for _ in range(_TRIES):
            now = self._look(seen.job)
            status = now.status if isinstance(now, Scene) else now
            refused = "" if held and status.held and status.life == seen.life else changed(seen, status)
            if refused or not isinstance(now, Scene) or now.doc is None:
                return refused or _say(now)
            try:
                answer = order(now, now.doc)
            except PatrolError as problem:
                return f"{problem}; whether it was done is not known"
            if not answer.why:
                return ""
            if answer.code >= _TROUBLE:
                return f"the API says {answer.why}; whether it was done is not known"
            said = answer.why
            if answer.code not in _CONFLICTS:
                break
        return f"nothing was done: the API says {said}"

    def _delete_pods(self, scene: Scene) -> str:
        """Each by its uid, our own last. One that is gone or another by now is what was wanted."""
        around = pod_around_us(scene.pods, own_namespace())
        pods = [pod for pod in staying(scene.pods) if around is None or pod.metadata.uid != around.metadata.uid]

        def delete(pod: Pod) -> str:
            try:
                answer = self._client.delete_pod(scene.job.namespace, pod)
            except PatrolError as problem:
                return f"{pod.metadata.name}: {problem}"
            return "" if not answer.why or answer.code in {404, 409} else f"{pod.metadata.name}: {answer.why}"

        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            problems = [problem for problem in pool.map(delete, pods) if problem]
        if not problems and around is not None:
            problems = [problem for problem in (delete(around),) if problem]
        return f"{len(problems)} of its pods were not deleted, as far as is known: {'; '.join(problems[:4])}" if problems else ""

    def _until(self, job: str, come_true: Callable[[Scene | JobStatus], bool], deadline_s: float) -> str:
        """Read back until it has come true."""
        began = self._clock.mono_s()
        while not come_true(now := self._look(job)):
            waited_s = self._clock.mono_s() - began
            if waited_s >= deadline_s:
                return self._not_done(now, deadline_s)
            # The longer it takes, the less often the API is asked. A watch would take one more right, and tell nothing more.
            self._clock.sleep(max(self._waits.poll_s, waited_s / 10))
        return ""

    def _not_done(self, now: Scene | JobStatus, deadline_s: float) -> str:
        if not isinstance(now, Scene):
            return f"whether it was done is not known: {now.reason}"
        left = "; ".join(pod_in_words(pod) for pod in live(now.pods)[:4])
        stuck = f": {left} (a kubelet that does not answer keeps its pods, and their processes may go on)" if left else ""
        held = f"; it stays suspended until it is released: {release_command(now.job.id)}" if now.status.held else ""
        return f"not done after {deadline_s:g} s: the job is {now.status.said}{stuck}{held}"


def _scene_or_why(now: Scene | JobStatus) -> Scene | str:
    return now if isinstance(now, Scene) else _say(now)


def _say(now: Scene | JobStatus) -> str:
    status = now.status if isinstance(now, Scene) else now
    return plain(status.said or status.reason)


def _owner_of(pod: Pod) -> str:
    return pod.metadata.controller.uid if pod.metadata.controller is not None else ""


def _is_gone(now: Scene | JobStatus, seen: JobStatus) -> bool:
    """The object of this uid is: another of its name may be there already."""
    if isinstance(now, Scene):
        return now.status.run.partition("/")[0] != seen.run.partition("/")[0]
    return now.state is JobState.ENDED


def _is_off(now: Scene | JobStatus) -> bool:
    return isinstance(now, Scene) and now.status.held and now.status.state is JobState.PENDING


def _without(now: Scene | JobStatus, uids: set[str]) -> bool:
    """None of these pods is there without having been told to go."""
    if not isinstance(now, Scene):
        return now.state is JobState.ENDED
    return not any(pod.metadata.uid in uids for pod in staying(now.pods))
