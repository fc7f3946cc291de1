"""Where the API is silent, forbids, stumbles, or is none at all; and words that are never put into a request."""

import json
import os
import ssl
import threading

import pytest
from kube_api import CutOff
from kube_controllers import GROUPS, Refused
from kube_scenes import LOOK, a_job, jobs, orders, pods_of

from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.schedulers import kubernetes_client
from rankpatrol.schedulers.kubernetes_client import KubernetesClient, KubernetesSilent

pytestmark = pytest.mark.timeout(60)


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


@pytest.mark.parametrize("code", [500, 503, 504])
def test_an_order_that_the_api_itself_stumbles_over_is_not_called_undone(api, code):
    job = a_job(api)
    seen = jobs().describe(job)

    def stumble(verb: str, _: str) -> None:
        if verb in {"patch", "delete"}:
            raise Refused(code, "Timeout", "request did not complete within requested timeout")

    api.before = stumble
    for told in (jobs().terminate(seen), jobs().requeue(seen, held=True), jobs().requeue(seen, held=False)):
        assert f"{code}: request did not complete" in told
        assert "nothing was done" not in told
        assert "known" in told


def test_nobody_listens(api, monkeypatch, tmp_path):
    path = tmp_path / "nobody"
    path.write_text(api.kubeconfig().read_text().replace(api.url, "https://127.0.0.1:1"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "no answer from the Kubernetes API" in jobs().describe("k8s:team/job/train").reason


def test_a_kubeconfig_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/gone:{tmp_path}/gone-too")
    assert (
        f"KUBECONFIG names {tmp_path}/gone, {tmp_path}/gone-too, and no such file is there" in jobs().describe("k8s:team/job/train").reason
    )


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
        b'{"kind": "Job", "metadata": {"name": "train", "uid": "0a1',
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


def test_an_answer_that_is_cut_off_is_unknown(api):
    """The connection ends in the middle of a body whose length was promised."""
    job = a_job(api)
    whole = json.dumps(api.store.objects["jobs", "team", "train"]).encode()
    cut = CutOff(whole[: len(whole) // 2])
    cut.promised = len(whole)
    api.fault = lambda verb, path: cut if path.endswith("/jobs/train") else None
    told = jobs().describe(job)
    assert told.state is JobState.UNKNOWN
    assert "no answer from the Kubernetes API" in told.reason


def test_an_answer_without_end_is_given_up(api, monkeypatch):
    job = a_job(api)
    monkeypatch.setattr(kubernetes_client, "_MOST_BYTES", 1 << 20)
    api.fault = lambda verb, path: b" " * (3 << 20) if verb == "list" else None
    assert "more than 1 MiB" in jobs().describe(job).reason


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
    monkeypatch.setitem(GROUPS, ("jobset.x-k8s.io", "v1alpha2"), {})
    assert "has no jobsets of jobset.x-k8s.io/v1alpha2" in jobs().describe("k8s:team/jobset/x").reason
    assert "there is no Job x in namespace team" in jobs().describe("k8s:team/job/x").reason


def test_a_pods_service_account_is_a_way_in(api, monkeypatch, tmp_path):
    from kubernetes.config import incluster_config

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
    for thread in [each for each in threading.enumerate() if each.name == "kubernetes"]:
        thread.join(20)
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
