"""The processes of a Kubernetes job on this node, for whoever looks at them from the node or from within the pod."""

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState
from rankpatrol.core.records import Missing
from rankpatrol.schedulers.kubernetes import KubernetesJobs
from rankpatrol.schedulers.kubernetes_client import KubernetesClient
from rankpatrol.schedulers.kubernetes_words import parse_job
from rankpatrol.system.clock import SystemClock


def pids_of_job(job: str) -> frozenset[int]:
    """Their pids. Raises BadInput where none is here, with the way to where they are."""
    named = parse_job(job)
    scheduler = KubernetesJobs(KubernetesClient(), SystemClock())
    seen = scheduler.describe(named.id)
    if seen.state is not JobState.RUNNING:
        why = ": ".join(word for word in (seen.said, seen.reason) if word)
        raise BadInput(f"job {named.id}: {why}", help="A job that runs can be watched.")
    found = scheduler.processes(named.id)
    if isinstance(found, Missing):
        pod = seen.steps[0].split(" ", 1)[0]
        look = f"kubectl -n {named.namespace} exec {pod} -- rankpatrol watch --all --once"
        raise BadInput(f"job {named.id}: {found.reason}", help=f"Look on those nodes as root, or in its pods: {look}")
    return frozenset(each.process.pid for each in found)
