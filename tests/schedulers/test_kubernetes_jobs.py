"""Jobs of Kubernetes, held against an API server of our own by the official client: what is done, what is refused, what is left alone."""

import threading

import pytest
from kube_api import ApiServer
from kube_scenes import LOOK, a_job, jobs, make, orders, owner, pods_of, run_pods
from msgspec.structs import replace

from rankpatrol.core.jobs import JobState

pytestmark = pytest.mark.timeout(60)


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
        api.controllers.settle(api.store.put("pods", pod))
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
                api.controllers.settle(api.store.put("pods", pod))

    api.before = finish
    assert jobs().terminate(seen) == "nothing was done: the job is Complete now"
    assert ("jobs", "team", "train") in api.store.objects


def test_another_job_of_the_same_name_is_not_the_one_that_was_seen(api):
    job = a_job(api)
    seen = jobs().describe(job)
    with api.store.change:
        api.controllers.remove("jobs", api.store.objects["jobs", "team", "train"], {})
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
    told = jobs().requeue(seen, held=True)
    assert told.startswith("not done after 5 s: the job is Suspending: own on n")
    assert f"it stays suspended until it is released: kubectl -n team patch {plural} big" in told
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
