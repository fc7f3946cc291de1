"""Jobs of Kubernetes, held against an API server of our own by the official client: what is asked, what is refused, what is left alone."""

import json
import os
import ssl
import threading

import pytest
from kube_api import ApiServer, now
from msgspec.structs import replace

from clocks import FakeClock
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.schedulers.kubernetes import KubernetesJobs, KubernetesWaits
from rankpatrol.schedulers.kubernetes_client import KubernetesClient, KubernetesSilent

pytestmark = pytest.mark.timeout(60)
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


@pytest.fixture
def gone_at_once(api: ApiServer):
    """A kubelet that has every pod ended as soon as it is told to."""

    def reap(verb: str, _: str) -> None:
        if verb in {"get", "list"}:
            with api.store.change:
                for pod in [pod for pod in pods_of(api) if "deletionTimestamp" in pod["metadata"]]:
                    api._delete("pods", pod, {"gracePeriodSeconds": 0})

    api.before = reap


def test_a_job_is_told_with_its_pods(api):
    job = a_job(api, pods=2, activeDeadlineSeconds=3600)
    seen = jobs().describe(job)
    assert (seen.state, seen.said, seen.restarts) == (JobState.RUNNING, "Running", 0)
    assert seen.nodes == ("n0", "n1")
    assert seen.world_size == 8
    assert seen.time_limit_s == 3600.0
    assert seen.may_hold is True
    assert [step.partition(" on ")[2] for step in seen.steps] == ["n0: Running", "n1: Running"]


def test_pods_that_wear_the_label_but_are_not_the_jobs_are_left_alone(api, gone_at_once):
    job = a_job(api)
    make(api, "pods", "stranger", {"containers": []}, labels={"job-name": "train"})
    other = make(api, "jobs", "other", {})
    make(api, "pods", "others", {"containers": []}, labels={"job-name": "train"}, ownerReferences=[owner(other)])
    run_pods(api)
    seen = jobs().describe(job)
    assert len(seen.steps) == 1
    assert jobs().requeue(seen, held=False) == ""
    assert {"stranger", "others"} <= {pod["metadata"]["name"] for pod in pods_of(api)}


def test_exactly_the_pod_that_was_seen_is_deleted(api, gone_at_once):
    """Between our look and our order another pod takes the name (a StatefulSet's): the uid is of the first."""
    sts = {**owner(make(api, "jobs", "keeper")), "kind": "StatefulSet", "name": "train"}
    first = make(api, "pods", "train-0", {"containers": []}, ownerReferences=[sts])
    run_pods(api)
    seen = jobs().describe("k8s:team/pod/train-0")

    def swap(verb: str, _: str) -> None:
        if verb == "delete":
            api.before = None
            with api.store.change:
                api.store.drop("pods", api.store.objects["pods", "team", "train-0"])
                make(api, "pods", "train-0", {"containers": []}, ownerReferences=[sts])

    api.before = swap
    assert jobs().requeue(seen, held=False) == ""
    (now_there,) = pods_of(api)
    assert now_there["metadata"]["uid"] != first["metadata"]["uid"]
    assert "deletionTimestamp" not in now_there["metadata"]


def test_a_single_pod_of_a_controller_is_made_again_and_never_ended_for_good(api, gone_at_once):
    a_job(api)
    (pod,) = pods_of(api)
    name = f"k8s:team/pod/{pod['metadata']['name']}"
    seen = jobs().describe(name)
    assert seen.part_of == "k8s:team/job/train"
    assert "k8s:team/job/train would make it again" in jobs().terminate(seen)
    assert orders(api) == []
    scheduler = jobs()
    assert scheduler.requeue(seen, held=False) == ""
    assert scheduler.describe(name).state is JobState.ENDED
    (again,) = pods_of(api)
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]


def test_a_pod_of_nobodys_is_ended_and_never_requeued(api, gone_at_once):
    make(api, "pods", "alone", {"containers": []})
    run_pods(api)
    seen = jobs().describe("k8s:team/pod/alone")
    assert jobs().requeue(seen, held=False).startswith("nothing was done: no controller")
    assert jobs().terminate(seen) == ""
    assert pods_of(api) == []


def test_a_held_job_is_off_its_nodes_counts_no_failure_and_starts_when_released(api, gone_at_once):
    job, scheduler = a_job(api, pods=2), jobs()
    seen = scheduler.describe(job)
    assert scheduler.requeue(seen, held=True) == ""
    held = scheduler.describe(job)
    assert (held.state, held.held, held.nodes) == (JobState.PENDING, True, ())
    assert scheduler.terminate(held).startswith("nothing was done: the job is Suspended")
    assert scheduler.release(job) == ""
    run_pods(api)
    after = scheduler.describe(job)
    assert (after.state, after.restarts) == (JobState.RUNNING, 0)
    assert after.life != seen.life
    assert "its processes are others" in scheduler.terminate(seen)
    assert scheduler.release(job).startswith("it is not held")


def test_a_job_that_fails_meanwhile_counts_as_started_again(api):
    job = a_job(api)
    seen = jobs().describe(job)
    with api.store.change:
        (pod,) = pods_of(api)
        pod["status"]["phase"] = "Failed"
        api._after(api.store.put("pods", pod))
    run_pods(api)
    assert "restart 1, not 0" in jobs().terminate(seen)
    assert "restart 1, not 0" in jobs().requeue(seen, held=True)
    assert orders(api) == []


def test_an_object_that_moves_on_between_look_and_order_is_looked_at_again(api, gone_at_once):
    """Its version is a precondition: a new status alone lets the order be repeated, an end of the job does not."""
    job = a_job(api)
    seen, reap = jobs().describe(job), api.before

    def touch(verb: str, path: str) -> None:
        reap(verb, path)
        if verb == "patch" and len(orders(api)) == 1:
            with api.store.change:
                api.store.put("jobs", api.store.objects["jobs", "team", "train"])

    api.before = touch
    assert jobs().requeue(seen, held=True) == ""
    assert len(orders(api)) == 2


def test_a_job_that_ends_between_look_and_order_is_not_ended_again(api):
    job = a_job(api)
    seen = jobs().describe(job)

    def finish(verb: str, _: str) -> None:
        if verb == "delete":
            with api.store.change:
                (pod,) = pods_of(api)
                pod["status"]["phase"] = "Succeeded"
                api._after(api.store.put("pods", pod))

    api.before = finish
    assert jobs().terminate(seen) == "nothing was done: the job is Complete now"
    assert ("jobs", "team", "train") in api.store.objects


def test_another_job_of_the_same_name_is_not_the_one_that_was_seen(api):
    job = a_job(api)
    seen = jobs().describe(job)
    with api.store.change:
        api.remove("jobs", api.store.objects["jobs", "team", "train"], {})
        for pod in pods_of(api):
            api.store.drop("pods", pod)
    a_job(api)
    assert "started again since" in jobs().terminate(seen)
    assert orders(api) == []


@pytest.mark.parametrize(
    ("plural", "word", "path"),
    [
        ("jobsets", "jobset", ("spec", "suspend")),
        ("trainjobs", "trainjob", ("spec", "suspend")),
        ("pytorchjobs", "pytorchjob", ("spec", "runPolicy", "suspend")),
    ],
)
def test_each_kind_finds_its_pods_through_its_owners_and_is_held_by_its_own_switch(api, plural, word, path):
    spec = {"runPolicy": {}} if word == "pytorchjob" else {}
    top = make(api, plural, "big", spec)
    label = "training.kubeflow.org/job-name" if word == "pytorchjob" else "jobset.sigs.k8s.io/jobset-name"
    above = top
    if word == "trainjob":
        above = make(api, "jobsets", "big", ownerReferences=[owner(top)])
    if word != "pytorchjob":
        above = make(api, "jobs", "big-node-0", {}, labels={label: "big"}, ownerReferences=[owner(above)])
        stray = make(api, "jobs", "stray", {}, labels={label: "big"})
        make(api, "pods", "stray", {"containers": []}, labels={label: "big"}, ownerReferences=[owner(stray)])
    make(api, "pods", "own", {"containers": []}, labels={label: "big"}, ownerReferences=[owner(above)])
    run_pods(api)
    seen = jobs().describe(f"k8s:team/{word}/big")
    assert seen.state is JobState.RUNNING, seen
    assert [step.split()[0] for step in seen.steps] == ["own"]
    # Nobody here ends the pods of a suspended one, so the deed is told as not done: what was ordered stands.
    assert jobs().requeue(seen, held=True).startswith("not done after 5 s: the job is Suspending: own on n")
    thing = api.store.objects[plural, "team", "big"]
    for part in path:
        thing = thing[part]
    assert thing is True


def test_a_jobset_is_ended_with_all_that_it_owns(api, gone_at_once):
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}
    make(api, "jobsets", "big", {"replicatedJobs": [{"name": "node", "replicas": 2, "template": template}]})
    run_pods(api)
    scheduler = jobs()
    seen = scheduler.describe("k8s:team/jobset/big")
    assert len(seen.steps) == 2
    assert scheduler.terminate(seen) == ""
    assert api.store.objects == {}
    assert scheduler.describe("k8s:team/jobset/big").state is JobState.ENDED


def test_the_job_of_a_jobset_is_not_ended_alone_and_not_held(api):
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}
    make(api, "jobsets", "big", {"replicatedJobs": [{"name": "node", "template": template}]})
    run_pods(api)
    seen = jobs().describe("k8s:team/job/big-node-0")
    assert seen.part_of == "k8s:team/jobset/big"
    assert "k8s:team/jobset/big would make it again" in jobs().terminate(seen)
    assert "cannot be held" in jobs().requeue(seen, held=True)
    assert orders(api) == []


def test_kueues_switch_is_not_touched(api):
    job = a_job(api)
    api.store.objects["jobs", "team", "train"]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    seen = jobs().describe(job)
    assert seen.may_hold is False
    assert "cannot be held" in jobs().requeue(seen, held=True)
    assert orders(api) == []


def test_a_server_that_does_not_know_suspend_is_found_out(api):
    api.store.knows_suspend = False
    job = a_job(api)
    assert jobs().describe(job).may_hold is False
    pretended = replace(jobs().describe(job), may_hold=True)
    assert "does not know `suspend`" in jobs().requeue(pretended, held=True)


def test_a_pod_whose_kubelet_does_not_answer_is_said_to_stay(api):
    """Nothing is forced: its processes may still run on the node that is cut off."""
    job = a_job(api)
    told = jobs().terminate(jobs().describe(job))
    assert told.startswith("not done after 5 s: the job is Deleting: train-")
    assert "on n0: Terminating (a kubelet that does not answer keeps its pods, and their processes may go on)" in told
    assert all("gracePeriodSeconds" not in each for each in api.asked)


@pytest.mark.parametrize(("right", "what"), [(("patch", "jobs"), "hold"), (("delete", "jobs"), "end"), (("delete", "pods"), "requeue")])
def test_without_the_right_nothing_is_done_and_the_right_is_named(api, monkeypatch, right, what):
    job = a_job(api)
    api.rights["few"] = LOOK | ({("patch", "jobs"), ("delete", "jobs"), ("delete", "pods")} - {right})
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig("few")))
    scheduler = jobs()
    seen = scheduler.describe(job)
    deed = {"hold": lambda: scheduler.requeue(seen, held=True), "end": lambda: scheduler.terminate(seen)}.get(
        what, lambda: scheduler.requeue(seen, held=False)
    )
    told = deed()
    assert f'cannot {right[0]} resource "{right[1]}"' in told
    assert scheduler.describe(job).life == seen.life


@pytest.mark.parametrize(
    ("right", "said"), [(("get", "jobs"), "jobs may not be read: 403"), (("list", "pods"), "pods may not be listed: 403")]
)
def test_what_may_not_be_read_is_unknown(api, monkeypatch, right, said):
    job = a_job(api)
    api.rights["few"] = LOOK - {right}
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig("few")))
    seen = jobs().describe(job)
    assert seen.state is JobState.UNKNOWN
    assert said in seen.reason
    assert "rbac.yaml" in seen.reason


def test_a_token_that_is_not_taken_is_unknown(api, monkeypatch):
    job = a_job(api)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig("nobody")))
    assert "401: Unauthorized" in jobs().describe(job).reason


def test_an_api_that_does_not_answer_is_unknown_after_the_deadline(api):
    job = a_job(api)
    seen = jobs().describe(job)
    api.thawed.clear()
    told = jobs(call_s=0.5).describe(job)
    assert told.state is JobState.UNKNOWN
    assert "no answer from the Kubernetes API after 0.5 s" in told.reason
    assert isinstance(jobs(call_s=0.5).processes(job), Missing)
    assert jobs(call_s=0.5).terminate(seen).startswith("nothing was done: no answer")
    api.thawed.set()
    assert not [each for each in orders(api) if each.startswith("delete")]


def test_an_api_that_falls_silent_after_the_order_leaves_it_unknown(api):
    """The order may have arrived: it is not called undone."""
    job = a_job(api)
    seen = jobs().describe(job)
    api.before = lambda verb, _: api.thawed.clear() if verb == "delete" else None
    assert jobs(call_s=0.5).terminate(seen).endswith("whether it was done is not known")


def test_nobody_listens(api, monkeypatch, tmp_path):
    path = tmp_path / "nobody"
    path.write_text(api.kubeconfig().read_text().replace(api.url, "https://127.0.0.1:1"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "no answer from the Kubernetes API" in jobs().describe("k8s:team/job/train").reason


def test_a_server_with_another_certificate_is_not_spoken_to(api, monkeypatch, tmp_path):
    job = a_job(api)
    path = tmp_path / "other"
    path.write_text(
        api.kubeconfig().read_text().replace(str(api.ca), ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    told = jobs().describe(job)
    assert told.state is JobState.UNKNOWN
    assert api.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>sign in</html>",
        b"[]",
        b"null",
        b'{"metadata": []}',
        b'{"metadata": {"uid": 7}}',
        b'{"metadata": {}, "status": {"conditions": "all well"}}',
        b'{"metadata": {}, "spec": {"suspend": "no"}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"metadata": {"uid": "\\ud800"}}',
    ],
)
def test_foreign_json_is_unknown_and_no_crash(api, body):
    job = a_job(api)
    seen = jobs().describe(job)
    api.fault = lambda verb, path: body if path.endswith("/jobs/train") else None
    told = jobs().describe(job)
    assert told.state is JobState.UNKNOWN
    assert told.reason
    assert jobs().terminate(seen).startswith("nothing was done")


@pytest.mark.parametrize(
    "item",
    [
        {"metadata": {"name": "../../jobs/other", "uid": "u"}},
        {"metadata": {"name": "x", "uid": ""}},
        {"metadata": {"name": "x y", "uid": "u"}},
    ],
)
def test_pods_without_a_proper_name_or_uid_are_never_named_to_the_api(api, item):
    job = a_job(api)
    uid = api.store.objects["jobs", "team", "train"]["metadata"]["uid"]
    item["metadata"]["ownerReferences"] = [{"uid": uid, "kind": "Job", "name": "train", "controller": True}]
    item["spec"], item["status"] = {"nodeName": "n1; rm -rf /"}, {"phase": "Running"}
    body = json.dumps({"kind": "PodList", "metadata": {}, "items": [item]}).encode()
    api.fault = lambda verb, _: body if verb == "list" else None
    assert jobs().describe(job).state is JobState.PENDING


def test_a_hostile_node_name_is_no_node(api):
    job = a_job(api)
    with api.store.change:
        pods_of(api)[0]["spec"]["nodeName"] = "n1;\x1b[2J\n$(id)"
    seen = jobs().describe(job)
    assert seen.nodes == ()
    assert seen.steps[0].isprintable()


@pytest.mark.parametrize(
    "job", ["k8s:team/job/train,app=x", "k8s:team/job/train)", "k8s:te am/job/x", "k8s:team/job/..", "k8s:team/node/n1"]
)
def test_no_selector_and_no_path_is_made_of_words_that_are_no_names(api, job):
    assert jobs().describe(job).state is JobState.UNKNOWN
    assert jobs().terminate(JobStatus(job=job, state=JobState.RUNNING)).startswith("nothing was done")
    assert api.asked == []


def test_a_long_list_is_read_page_by_page(api):
    job = a_job(api, pods=260)
    seen = jobs().describe(job)
    assert len(seen.nodes) == 260
    assert seen.steps[-1] == "and 196 more"
    assert sum("continue=" in each for each in api.asked) == 1


def test_a_kind_that_the_server_does_not_have_is_told_from_a_job_that_is_not_there(api, monkeypatch):
    monkeypatch.setitem(__import__("kube_api").GROUPS, ("jobset.x-k8s.io", "v1alpha2"), {})
    assert "has no jobsets of jobset.x-k8s.io/v1alpha2" in jobs().describe("k8s:team/jobset/x").reason
    assert "there is no Job x in namespace team" in jobs().describe("k8s:team/job/x").reason


def test_two_who_end_a_job_at_once_end_it_once(api, gone_at_once):
    job = a_job(api)
    seen = jobs().describe(job)
    told: list[str] = []
    threads = [threading.Thread(target=lambda: told.append(jobs().requeue(seen, held=True))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("") >= 1
    assert all(not each or each.startswith("nothing was done") for each in told)
    assert jobs().describe(job).held
    assert api.store.objects["jobs", "team", "train"]["status"].get("failed", 0) == 0


def test_a_pods_service_account_is_a_way_in(api, monkeypatch, tmp_path):
    from kubernetes.config import incluster_config

    from rankpatrol.schedulers import kubernetes_client

    job = a_job(api)
    (tmp_path / "token").write_text("admin")
    (tmp_path / "namespace").write_text("team\n")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.url.rpartition(":")[2])
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(api.ca))
    monkeypatch.setattr(kubernetes_client, "_SERVICE_ACCOUNT", tmp_path)
    assert kubernetes_client.way_in() == "pod"
    assert KubernetesClient().namespace() == "team"
    assert jobs().describe(job).state is JobState.RUNNING
    (tmp_path / "token").unlink()
    assert "no kubeconfig here" in jobs().describe(job).reason


def test_credentials_that_never_come_are_not_waited_for(api, monkeypatch, tmp_path):
    """A kubeconfig may name a program that gives the token; this one waits for somebody to write into a pipe."""
    pipe, path = tmp_path / "pipe", tmp_path / "slow"
    os.mkfifo(pipe)
    document = json.loads(api.kubeconfig().read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(pipe)], "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": plugin}
    path.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(path))
    told = jobs(call_s=1.0).describe("k8s:team/job/train")
    with pipe.open("wb"):
        pass
    assert told.state is JobState.UNKNOWN
    assert "no answer from the Kubernetes API after 1 s" in told.reason
    assert api.asked == []


@pytest.mark.parametrize("text", ["", "{", "[]", "apiVersion: v1", '{"clusters": 7, "users": [], "contexts": [], "current-context": "x"}'])
def test_a_kubeconfig_that_is_none_is_unknown(monkeypatch, tmp_path, text):
    path = tmp_path / "odd"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert jobs().describe("k8s:team/job/train").state is JobState.UNKNOWN
    with pytest.raises(KubernetesSilent):
        KubernetesClient().namespace()
