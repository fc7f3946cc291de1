"""`end`, `watch` and `doctor` with a job of Kubernetes: what is refused before anything is touched, and what a person is told to do."""

import json
import subprocess
import sys

import pytest
from kube_api import ApiServer
from kube_scenes import LOOK, a_job, make, orders, run_pods
from sites import STANDIN, KubernetesSite, wait_for

from rankpatrol.cli.main import call
from rankpatrol.core.jobs import JobState
from rankpatrol.doctor.kubernetes import KubernetesFacts, look_at_kubernetes
from rankpatrol.schedulers import kubernetes_client

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKPATROL_LEASES", str(tmp_path / "leases"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--job", "team/train"], 65, "k8s:NAMESPACE/KIND/NAME"),
        (["--job", "team/job/train"], 65, "k8s:NAMESPACE/KIND/NAME"),
        (["--job", "k8s:team/train"], 65, "k8s:NAMESPACE/KIND/NAME"),
        (["--job", "k8s:team/deployment/web"], 65, "is not a kind of job"),
        (["--job", "k8s:team/job/none"], 3, "there is no Job none in namespace team"),
        (["--job", "k8s:team/job/train", "--requeue", "--avoid", "n1"], 65, "`kubectl cordon n1` keeps all new pods from them"),
        (["--job", "k8s:team/job/train", "--requeue", "--drain"], 65, "without --avoid and --drain"),
        (["--job", "k8s:team/job/train", "--requeue", "--avoid", "n1;id"], 65, "is not the name of a node"),
        (["--job", "k8s:team/pod/{pod}"], 65, "End all of it: --job k8s:team/job/train"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(api: ApiServer, here, capsys, words, code, said):
    a_job(api)
    pod = api.store.listed("pods", "team")[0]["metadata"]["name"]
    assert call(["end", "--yes", *(word.format(pod=pod) for word in words)]) == code
    assert said in capsys.readouterr().err
    assert orders(api) == []
    assert not (here / "rankpatrol-runs").exists()


@pytest.mark.parametrize(
    ("spec", "said"), [({"suspend": True}, "does not run (Suspended)"), ({"parallelism": 0}, "its controller has made no pods yet")]
)
def test_a_job_that_does_not_run_is_refused(api, capsys, spec, said):
    a_job(api, **spec)
    assert call(["end", "--job", "k8s:team/job/train", "--yes"]) == 65
    told = capsys.readouterr().err
    assert said in told
    assert "kubectl -n team delete jobs train" in told


def test_an_api_that_does_not_answer_is_exit_code_3(api, monkeypatch, capsys):
    job = a_job(api)
    monkeypatch.setattr(kubernetes_client, "CALL_S", 0.5)
    monkeypatch.setenv("KUBECONFIG", str(api.folder / "none"))
    assert call(["end", "--job", job, "--yes"]) == 3
    assert "Nothing was done" in capsys.readouterr().err


def test_where_the_client_is_not_installed_the_extra_is_named(api, monkeypatch, capsys):
    monkeypatch.setattr(kubernetes_client, "installed", lambda: False)
    assert call(["end", "--job", "k8s:team/job/train"]) == 3
    assert "pip install '.[k8s]'" in capsys.readouterr().err


def test_a_dry_run_shows_the_plan_and_asks_the_api_for_nothing_but_looks(api, capsys):
    job = a_job(api)
    assert call(["end", "--job", job, "--requeue", "--yes", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["type"] for step in told["plan"]["steps"]] == ["confirm_job", "requeue_job", "release_job"]
    assert told["plan"]["steps"][1]["held"] is True
    assert orders(api) == []


def test_a_failing_order_is_told_and_leaves_the_evidence(api, monkeypatch, here, capsys):
    job = a_job(api)
    api.rights["looker"] = LOOK
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig("looker")))
    assert call(["end", "--job", job, "--yes", "--out", "out"]) == 2
    told = capsys.readouterr().out
    assert 'NOT DONE: nothing was done: the API says 403: jobs "train" is forbidden' in told
    assert (here / "out" / "incidents" / "1" / "manifest.json").exists()
    assert ("jobs", "team", "train") in api.store.objects


def test_a_terminal_is_not_steered_by_what_others_write_into_objects(api, capsys):
    a_job(api)
    api.store.objects["jobs", "team", "train"]["status"]["conditions"] = [
        {"type": "Failed", "status": "True", "message": "\x1b[2J\x1b]0;x\x07", "reason": "x\r\ny"}
    ]
    assert call(["end", "--job", "k8s:team/job/train"]) == 65
    said = capsys.readouterr().err
    assert all(character.isprintable() or character == "\n" for character in said)


def test_a_job_is_watched_by_its_id_on_the_node_where_it_runs(kubernetes: KubernetesSite, capsys):
    job = kubernetes.start()
    wait_for(lambda: len(kubernetes.scheduler.processes(job)) >= 3, 20)
    words = [sys.executable, "-c", "print('ready', flush=True); input()"]
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "1"}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        stranger.stdout.readline()
        code = call(["watch", "--job", job, "--once", "--json"])
        stranger.communicate(b"\n")
    assert code in {0, 1, 2, 3}
    (seen,) = json.loads(capsys.readouterr().out)["jobs"]
    assert sorted(seen["at"]) == ["0", "1"]


def test_a_job_that_runs_elsewhere_is_watched_there(api, capsys):
    job = a_job(api)
    assert call(["watch", "--job", job, "--once"]) == 65
    told = capsys.readouterr().err
    assert "they are on n0" in told
    assert "kubectl -n team exec train-" in told
    assert call(["watch", "--job", "k8s:team/job/none", "--once"]) == 65
    assert "there is no Job none" in capsys.readouterr().err


def test_doctor_asks_the_api_for_our_rights(api, monkeypatch):
    api.rights["looker"] = LOOK
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig("looker")))
    seen = look_at_kubernetes({"KUBECONFIG": "x"})
    assert isinstance(seen, KubernetesFacts)
    assert (seen.way, seen.namespace) == ("kubeconfig", "default")
    assert [right for right, is_there in seen.rights.items() if is_there] == ["get jobs", "list pods"]


def test_a_jobset_is_ended_by_its_id(api, capsys):
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}
    make(api, "jobsets", "big", {"replicatedJobs": [{"name": "node", "template": template}]})
    run_pods(api)

    def reap(verb: str, _: str) -> None:
        if verb == "list":
            with api.store.change:
                for pod in [each for each in api.store.listed("pods", "team") if "deletionTimestamp" in each["metadata"]]:
                    api._delete("pods", pod, {"gracePeriodSeconds": 0})

    api.before = reap
    assert call(["end", "--job", "k8s:team/jobset/big", "--yes"]) == 0
    assert "job k8s:team/jobset/big: deleted" in capsys.readouterr().out


def test_a_requeue_that_is_typed_in_the_pod_does_not_suspend_itself(kubernetes: KubernetesSite, here, monkeypatch, capsys):
    job = kubernetes.make([sys.executable, str(STANDIN), "1", "-c", "import time; time.sleep(600)"])
    wait_for(lambda: kubernetes.scheduler.describe(job).state is JobState.RUNNING, 20)
    (pod,) = kubernetes.wire("GET", "/api/v1/namespaces/team/pods")[1]["items"]
    monkeypatch.setenv("RANKPATROL_POD_UID", pod["metadata"]["uid"])
    assert call(["end", "--job", job, "--requeue", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["plan"]["steps"]
    assert [(step["type"], step.get("held")) for step in steps] == [("confirm_job", None), ("requeue_job", False)]
