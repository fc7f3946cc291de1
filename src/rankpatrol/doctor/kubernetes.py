"""Kubernetes as it is reached from here: by which way, and with which rights."""

from collections.abc import Mapping

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing, Record
from rankpatrol.doctor.rows import Level, Row
from rankpatrol.schedulers.kubernetes_client import KubernetesClient, installed, way_in

# Five questions, of which the first that is not answered ends the round.
CALL_S, LOOK_S = 3.0, 20.0
_INSTALL = "pip install '.[k8s]' in rankpatrol's clone"
_RIGHTS_FILE = "kubectl apply -f examples/kubernetes/rbac.yaml, with your namespace in it."
# What each is needed for: seeing a Job and its pods, requeueing, ending. (verb, group, plural)
RIGHTS = (
    ("get", "batch", "jobs"),
    ("list", "", "pods"),
    ("patch", "batch", "jobs"),
    ("delete", "", "pods"),
    ("delete", "batch", "jobs"),
)


class KubernetesFacts(Record, frozen=True, kw_only=True):
    """`way` is `pod` or `kubeconfig`; `rights` are by "verb plural"."""

    way: str
    namespace: str
    rights: dict[str, bool] | Missing


def look_at_kubernetes(environment: Mapping[str, str]) -> KubernetesFacts | Missing | None:
    """Asked of the API; None where there is no way to one, Missing where its client is not installed."""
    way = way_in(environment)
    if not way:
        return None
    if not installed():
        return Missing(way)
    client = KubernetesClient(call_s=CALL_S)
    namespace = "?"
    try:
        namespace = client.namespace()
        rights = {f"{verb} {plural}": client.may(verb, group, plural, namespace) for verb, group, plural in RIGHTS}
    except PatrolError as problem:
        return KubernetesFacts(way=way, namespace=namespace, rights=Missing(str(problem)))
    return KubernetesFacts(way=way, namespace=namespace, rights=rights)


def judge_kubernetes(seen: KubernetesFacts | Missing | None) -> tuple[Row, ...]:
    """Rights that are not there are no fault: `run` needs none, and most pods should have none."""
    if seen is None:
        return ()
    if isinstance(seen, Missing):
        found = f"a {seen.reason} leads to Kubernetes, and its client is not installed: jobs cannot be ended as k8s:NAMESPACE/KIND/NAME"
        return (Row("kubernetes", Level.HINT, found, _INSTALL),)
    if isinstance(seen.rights, Missing):
        # An old kubeconfig in somebody's home says nothing of this machine; a pod that cannot reach its own API is odd.
        level = Level.UNKNOWN if seen.way == "pod" else Level.HINT
        return (Row("kubernetes", level, seen.rights.reason, "kubectl get --raw /readyz; kubectl config current-context"),)
    place = f"by {seen.way}, in namespace {seen.namespace}"
    lacking = [right for right, is_there in seen.rights.items() if not is_there]
    if not lacking:
        return (Row("kubernetes", Level.OK, f"{place}: Jobs may be seen, requeued and ended"),)
    return (Row("kubernetes", Level.HINT, f"{place}: no right to {', '.join(lacking)}", _RIGHTS_FILE),)
