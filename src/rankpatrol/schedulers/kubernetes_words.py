"""Kubernetes' words in ours, and which words may be said to its API. Pure; a new kind of job is a new row."""

import re

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState
from rankpatrol.core.records import Record

PREFIX = "k8s:"
# RFC 1123 labels: the API takes no other names for namespaces, jobs, pods and nodes. 63 characters are what a label's value may have, and
# pods are found by a label that holds the job's name.
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL, re.ASCII)
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_MOST_NAME_IN_LABEL = 63


class Kind(Record, frozen=True, kw_only=True):
    """One kind of job: where its objects are found, which labels its pods carry, and where its switch for a pause is (a JSON pointer)."""

    api_kind: str
    group: str
    version: str
    plural: str
    labels: tuple[str, ...] = ()
    suspend: tuple[str, ...] = ()


# jobset.sigs.k8s.io and trainer.kubeflow.org: a TrainJob is carried out by a JobSet of its name, a JobSet by Jobs.
_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
KINDS = {
    "job": Kind(
        api_kind="Job",
        group="batch",
        version="v1",
        plural="jobs",
        # The second since 1.27; the first is kept beside it.
        labels=("job-name", "batch.kubernetes.io/job-name"),
        suspend=("spec", "suspend"),
    ),
    "jobset": Kind(
        api_kind="JobSet",
        group="jobset.x-k8s.io",
        version="v1alpha2",
        plural="jobsets",
        labels=(_JOBSET_NAME,),
        suspend=("spec", "suspend"),
    ),
    "trainjob": Kind(
        api_kind="TrainJob",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="trainjobs",
        labels=(_JOBSET_NAME,),
        suspend=("spec", "suspend"),
    ),
    "pytorchjob": Kind(
        api_kind="PyTorchJob",
        group="kubeflow.org",
        version="v1",
        plural="pytorchjobs",
        labels=("training.kubeflow.org/job-name",),
        suspend=("spec", "runPolicy", "suspend"),
    ),
    "pod": Kind(api_kind="Pod", group="", version="v1", plural="pods"),
}
# Kueue admits and stops jobs by the same switch that we would hold them by, and would undo it.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Conditions that are true of a job that is over, and of one that is about to be (batch/v1, jobset, kubeflow.org, trainer.kubeflow.org).
ENDED = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
ENDING = frozenset({"FailureTarget", "SuccessCriteriaMet"})
PHASES = {
    "Pending": JobState.PENDING,
    "Running": JobState.RUNNING,
    "Succeeded": JobState.ENDED,
    "Failed": JobState.ENDED,
}
WHICH = f"Give k8s:NAMESPACE/KIND/NAME, where KIND is one of {', '.join(KINDS)}: for example k8s:default/job/train."


class KubeJob(Record, frozen=True, kw_only=True):
    """One object that runs pods."""

    namespace: str
    word: str
    name: str

    @property
    def kind(self) -> Kind:
        return KINDS[self.word]

    @property
    def id(self) -> str:
        return f"{PREFIX}{self.namespace}/{self.word}/{self.name}"

    @property
    def selectors(self) -> tuple[str, ...]:
        """Label selectors for its pods, to be tried in this order; both sides are of a form that needs no escape."""
        return tuple(f"{label}={self.name}" for label in self.kind.labels)


def is_kubernetes_id(job: str) -> bool:
    """True where the words are meant for Kubernetes, well formed or not."""
    return job.startswith(PREFIX)


def may_mean_kubernetes(job: str) -> bool:
    """True for `namespace/name` and `kind/name`: what kubectl's users type."""
    parts = job.split("/")
    return len(parts) in {2, 3} and all(_NAME.fullmatch(part) for part in parts)


def parse_job(job: str) -> KubeJob:
    """The object that is meant. Raises BadInput: nothing that is no name is ever put into a request."""
    parts = job.removeprefix(PREFIX).split("/")
    if not is_kubernetes_id(job) or len(parts) != 3:
        raise BadInput(f"{job[:120]!r} is not a job of Kubernetes", help=WHICH)
    namespace, word, name = parts[0], parts[1].lower(), parts[2]
    if word not in KINDS:
        raise BadInput(f"{word[:60]!r} is not a kind of job that is known here", help=WHICH)
    if not _NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise BadInput(f"{job[:120]!r} holds no names of Kubernetes", help=WHICH)
    if word != "pod" and len(name) > _MOST_NAME_IN_LABEL:
        raise BadInput(f"{name!r} is longer than a label can be, so its pods cannot be found", help="Name one of its pods instead.")
    return KubeJob(namespace=namespace, word=word, name=name)


def is_name(name: str) -> bool:
    """True where it can be the name of a pod, a node or a job."""
    return _NAME.fullmatch(name) is not None


def checked_kubernetes_node(node: str) -> str:
    """The name where it can be a node's, else BadInput."""
    if not is_name(node):
        raise BadInput(f"{node[:80]!r} is not the name of a node", help="Give names as `kubectl get nodes` lists them.")
    return node


def cordon_advice(nodes: tuple[str, ...]) -> str:
    """How a person keeps new pods from nodes: with rights over the cluster, which a job's patrol should not have."""
    return f"kubectl cordon {' '.join(checked_kubernetes_node(node) for node in nodes)}"


def release_command(job: str) -> str:
    """How a person resumes a job that is held."""
    named = parse_job(job)
    patch = "".join(f'{{"{part}":' for part in named.kind.suspend) + "false" + "}" * len(named.kind.suspend)
    return f"kubectl -n {named.namespace} patch {named.kind.plural} {named.name} --type=merge -p '{patch}'"
