"""What only a real API server can say: whether it refuses a wrong uid and an old version, and whether the example's rights are enough.

Skipped where RANKPATROL_KUBERNETES_BIN names no folder with etcd, kube-apiserver and kube-controller-manager (see build_kubernetes.sh).
"""

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from real_api import RealApi
from sites import KubernetesSite, wait_for

from rankpatrol.core.jobs import JobState
from rankpatrol.core.records import Missing
from rankpatrol.doctor.kubernetes import look_at_kubernetes
from rankpatrol.schedulers.kubernetes import KubernetesJobs, KubernetesWaits
from rankpatrol.schedulers.kubernetes_client import KubernetesClient
from rankpatrol.schedulers.kubernetes_words import parse_job
from rankpatrol.system.clock import SystemClock

pytestmark = pytest.mark.timeout(180)
RULES = Path(__file__).parent.parent.parent / "examples" / "kubernetes" / "rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/team"


@pytest.fixture
def rights(real_api: RealApi):
    """The example's roles, given to two users instead of a service account: `patrol` may end, `looker` may look."""
    roles = [document for document in yaml.safe_load_all(RULES.read_text()) if document["kind"] == "Role"]
    for role, user in zip(roles, ("patrol", "looker"), strict=True):
        name = role["metadata"]["name"]
        real_api.wire("POST", f"{RBAC}/roles", role)
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]
        real_api.wire("POST", f"{RBAC}/rolebindings", {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects})
    yield
    for role in roles:
        for plural in ("rolebindings", "roles"):
            real_api.wire("DELETE", f"{RBAC}/{plural}/{role['metadata']['name']}")


def as_user(real_api: RealApi, monkeypatch, token: str) -> KubernetesJobs:
    monkeypatch.setenv("KUBECONFIG", str(real_api.kubeconfig(token)))
    return KubernetesJobs(KubernetesClient(), SystemClock(), KubernetesWaits(gone_s=40, taken_s=20, poll_s=0.1))


def test_a_wrong_uid_and_an_old_version_are_refused_and_nothing_is_touched(real_kubernetes: KubernetesSite):
    job, client = real_kubernetes.start(), KubernetesClient()
    named = parse_job(job)
    doc = client.job(named)
    (pod,) = client.pods("team", named.selectors[0])
    stranger = replace(pod, metadata=replace(pod.metadata, uid="00000000-0000-4000-8000-000000000000"))
    assert client.delete_pod("team", stranger).code == 409
    old = replace(doc, metadata=replace(doc.metadata, resource_version="1"))
    assert client.delete_job(named, old).code == 409
    assert client.change(named, old, ("spec", "suspend"), value=True).code == 409
    other = replace(doc, metadata=replace(doc.metadata, uid=stranger.metadata.uid))
    assert client.delete_job(named, other).code == 409
    assert client.change(named, other, ("spec", "suspend"), value=True).code == 422
    assert client.job(named) == doc
    assert client.pods("team", named.selectors[0]) == (pod,)


def test_the_examples_rights_are_enough_to_end_and_to_requeue(real_kubernetes, real_api, rights, monkeypatch):
    job = real_kubernetes.start()
    scheduler = as_user(real_api, monkeypatch, "patrol")
    seen = scheduler.describe(job)
    assert seen.state is JobState.RUNNING, seen
    assert scheduler.requeue(seen, held=False) == ""
    wait_for(lambda: scheduler.describe(job).state is JobState.RUNNING, 40)
    assert scheduler.terminate(scheduler.describe(job)) == ""
    assert scheduler.describe(job).state is JobState.ENDED


def test_who_may_only_look_sees_and_ends_nothing(real_kubernetes, real_api, rights, monkeypatch):
    job = real_kubernetes.start()
    scheduler = as_user(real_api, monkeypatch, "looker")
    seen = scheduler.describe(job)
    assert seen.state is JobState.RUNNING, seen
    assert 'cannot delete resource "jobs"' in scheduler.terminate(seen)
    assert 'cannot delete resource "pods"' in scheduler.requeue(seen, held=False)
    assert 'cannot patch resource "jobs"' in scheduler.requeue(replace(seen, may_hold=True), held=True)
    assert scheduler.describe(job).life == seen.life


def test_without_rights_nothing_is_known(real_kubernetes, real_api, monkeypatch):
    job = real_kubernetes.start()
    seen = as_user(real_api, monkeypatch, "patrol").describe(job)
    assert seen.state is JobState.UNKNOWN
    assert "jobs may not be read: 403" in seen.reason


def test_doctor_tells_the_rights_that_are_there(real_kubernetes, real_api, rights, monkeypatch):
    def allowed(token: str) -> list[str]:
        monkeypatch.setenv("KUBECONFIG", str(real_api.kubeconfig(token)))
        monkeypatch.setattr(KubernetesClient, "namespace", lambda _: "team")
        facts = look_at_kubernetes({"KUBECONFIG": "x"})
        assert not isinstance(facts.rights, Missing), facts
        return [right for right, is_there in facts.rights.items() if is_there]

    assert allowed("patrol") == ["get jobs", "list pods", "patch jobs", "delete pods", "delete jobs"]
    assert allowed("looker") == ["get jobs", "list pods"]


def test_a_jobset_is_held_released_and_ended_by_its_own_object(real_kubernetes, real_api):
    """The type is there without its controller: the verbs are real, its pods are none."""
    wire, path = real_kubernetes.wire, "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "big"}, "spec": {"suspend": False}}
    code, jobset = wire("POST", path, body)
    assert code == 201, jobset
    uid = jobset["metadata"]["uid"]
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "big", "uid": uid, "controller": True}
    labels = {"jobset.sigs.k8s.io/jobset-name": "big"}
    pod = {"restartPolicy": "Never", "containers": [{"name": "train", "image": "none", "command": ["sleep", "600"]}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    part = {"metadata": {"name": "big-node-0", "labels": labels, "ownerReferences": [owner]}, "spec": {"template": template}}
    assert wire("POST", "/apis/batch/v1/namespaces/team/jobs", part)[0] == 201
    scheduler, job = real_kubernetes.scheduler, "k8s:team/jobset/big"
    wait_for(lambda: scheduler.describe(job).state is JobState.RUNNING, 40)
    seen = scheduler.describe(job)
    assert scheduler.describe("k8s:team/job/big-node-0").part_of == job
    client = KubernetesClient()
    assert client.change(parse_job(job), client.job(parse_job(job)), ("spec", "suspend"), value=True).why == ""
    assert scheduler.describe(job).said == "Suspending"
    assert client.change(parse_job(job), client.job(parse_job(job)), ("spec", "suspend"), value=False).why == ""
    assert scheduler.describe(job).life == seen.life
    assert scheduler.terminate(seen) == ""
    assert wire("GET", "/apis/batch/v1/namespaces/team/jobs/big-node-0")[0] == 404


def test_a_kind_that_is_not_installed_is_told(real_kubernetes):
    assert "has no trainjobs of trainer.kubeflow.org/v1alpha1" in real_kubernetes.scheduler.describe("k8s:team/trainjob/x").reason
