"""Jobs and pods in the small API server, as tests need them."""

from kube_api import ApiServer
from kube_controllers import now

from clocks import FakeClock
from rankpatrol.schedulers.kubernetes import KubernetesJobs, KubernetesWaits
from rankpatrol.schedulers.kubernetes_client import KubernetesClient

LOOK = {("get", "jobs"), ("list", "jobs"), ("get", "pods"), ("list", "pods"), ("get", "jobsets"), ("get", "trainjobs")}


def jobs(call_s: float = 5.0) -> KubernetesJobs:
    return KubernetesJobs(KubernetesClient(call_s=call_s), FakeClock(), KubernetesWaits(gone_s=5, taken_s=5, poll_s=1))


def make(api: ApiServer, plural: str, name: str, spec: dict | None = None, **meta: object) -> dict:
    group = {"jobs": "batch/v1", "pytorchjobs": "kubeflow.org/v1", "trainjobs": "trainer.kubeflow.org/v1alpha1", "pods": "v1"}.get(
        plural, "jobset.x-k8s.io/v1alpha2"
    )
    kind = {"jobs": "Job", "pytorchjobs": "PyTorchJob", "trainjobs": "TrainJob", "pods": "Pod", "jobsets": "JobSet"}[plural]
    thing = {"kind": kind, "metadata": {"name": name, "namespace": "team", **meta}, "spec": spec or {}}
    path = f"/{'apis' if '/' in group else 'api'}/{group}/namespaces/team/{plural}"
    return api.handle("admin", "create", path, {}, thing)[1]


def owner(thing: dict) -> dict:
    return {"kind": thing["kind"], "name": thing["metadata"]["name"], "uid": thing["metadata"]["uid"], "controller": True}


def a_job(api: ApiServer, name: str = "train", pods: int = 1, **spec: object) -> str:
    template = {"spec": {"containers": [{"name": "c", "env": [{"name": "WORLD_SIZE", "value": "8"}]}]}}
    make(api, "jobs", name, {"template": template, "parallelism": pods, "completions": pods, **spec})
    run_pods(api)
    return f"k8s:team/job/{name}"


def run_pods(api: ApiServer, **status: object) -> list[dict]:
    """What kubelets would say of all pods that are not on a node yet."""
    with api.store.change:
        fresh = [pod for pod in api.store.listed("pods", "team") if not pod["spec"].get("nodeName")]
        for number, pod in enumerate(fresh):
            pod["spec"]["nodeName"] = f"n{number}"
            pod["status"] = {"phase": "Running", "startTime": now(), **status}
            api.store.put("pods", pod)
    return fresh


def pods_of(api: ApiServer) -> list[dict]:
    return api.store.listed("pods", "team")


def orders(api: ApiServer) -> list[str]:
    """What was asked of the API that changes something."""
    return [each.partition("?")[0] for each in api.asked if each.startswith(("patch", "delete", "create"))]
