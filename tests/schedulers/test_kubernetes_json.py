"""Objects of the API in our words: recorded ones of 1.20, and ones in the shape of current versions."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes import client

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState
from rankpatrol.schedulers.kubernetes_json import JobDoc, PodList, plain, read_object, read_refusal, unix_s_of
from rankpatrol.schedulers.kubernetes_state import job_status, pod_status
from rankpatrol.schedulers.kubernetes_words import (
    KINDS,
    checked_kubernetes_node,
    cordon_advice,
    is_kubernetes_id,
    may_mean_kubernetes,
    parse_job,
    release_command,
)

DATA = Path(__file__).parent.parent / "data" / "schedulers" / "kubernetes"
CURRENT = sorted((DATA / "current").glob("*.json"))


def told(folder: str, job: str, pods: str | None = None, word: str = "job"):
    doc = read_object((DATA / folder / f"{job}.json").read_bytes(), JobDoc)
    found = () if pods is None else read_object((DATA / folder / f"{pods}.json").read_bytes(), PodList).items
    return job_status(parse_job(f"k8s:team/{word}/train"), doc, found)


@pytest.mark.parametrize("path", CURRENT, ids=lambda path: path.stem)
def test_what_stands_for_a_current_version_has_the_shape_of_its_types(path):
    thing = json.loads(path.read_text())
    if thing["kind"] == "Job":
        client.V1Job.model_validate(thing)
    elif thing["kind"] == "PodList":
        assert client.V1PodList.model_validate(thing).items
    else:
        assert thing["kind"] in {kind.api_kind for kind in KINDS.values()}


@pytest.mark.parametrize(
    ("job", "pods", "state", "said", "reason"),
    [
        ("job_running", "pods_running", JobState.RUNNING, "Running", ""),
        (
            "job_running",
            "pods_half",
            JobState.RUNNING,
            "Running",
            "1 of its 2 pods do not run: Unschedulable: 0/4 nodes are available: 4 In",
        ),
        ("job_running", "pods_pending", JobState.PENDING, "Pending", "Unschedulable: 0/4 nodes"),
        ("job_running", "pods_leaving", JobState.ENDING, "Terminating", ""),
        ("job_running", None, JobState.PENDING, "Pending", "its controller has made no pods yet"),
        ("job_running", "pods_ended", JobState.PENDING, "Pending", "all its pods have ended, and its controller has made no others yet"),
        ("job_suspended", "pods_leaving", JobState.ENDING, "Suspending", ""),
        ("job_suspended", None, JobState.PENDING, "Suspended", ""),
        ("job_failing", "pods_leaving", JobState.ENDING, "FailureTarget", "BackoffLimitExceeded: Job has reached"),
        ("job_complete", None, JobState.ENDED, "Complete", "CompletionsReached: Reached"),
    ],
)
def test_a_job_is_what_its_conditions_and_its_pods_say(job, pods, state, said, reason):
    seen = told("current", job, pods)
    assert (seen.state, seen.said) == (state, said)
    assert seen.reason.startswith(reason)
    assert seen.held == (said in {"Suspended", "Suspending"})


@pytest.mark.parametrize(
    ("job", "word", "state", "restarts"),
    [
        ("jobset_running", "jobset", JobState.RUNNING, 3 + 2),
        ("jobset_failed", "jobset", JobState.ENDED, 6 + 2),
        ("trainjob_complete", "trainjob", JobState.ENDED, 2),
        ("pytorchjob_restarting", "pytorchjob", JobState.RUNNING, 2 + 2),
    ],
)
def test_each_kind_speaks_in_its_own_words(job, word, state, restarts):
    """Two restarts of a container are told by the pods."""
    seen = told("current", job, "pods_running", word)
    assert (seen.state, seen.restarts) == (state, restarts)
    assert seen.job == f"k8s:team/{word}/train"


def test_all_facts_of_a_running_job():
    seen = told("current", "job_running", "pods_running")
    assert seen.nodes == ("gpu-0.rack-1", "gpu-1.rack-1")
    assert seen.world_size == 16
    assert seen.restarts == 3
    assert seen.queued_unix_s == 1795939200.0
    assert seen.started_unix_s == 1795939205.0
    assert seen.may_hold is True
    assert seen.steps == ("train-0-x0k2p on gpu-0.rack-1: Running", "train-1-x1k2p on gpu-1.rack-1: Running")
    assert told("current", "pytorchjob_restarting", word="pytorchjob").time_limit_s == 7200.0


def test_one_pod_for_another_is_another_run_and_the_order_of_the_list_is_none():
    doc = read_object((DATA / "current" / "job_running.json").read_bytes(), JobDoc)
    one, two = read_object((DATA / "current" / "pods_running.json").read_bytes(), PodList).items
    three, _ = read_object((DATA / "current" / "pods_pending.json").read_bytes(), PodList).items
    job = parse_job("k8s:team/job/train")
    assert job_status(job, doc, (one, two)).run == job_status(job, doc, (two, one)).run
    assert job_status(job, doc, (one, two)).run != job_status(job, doc, (one,)).run
    assert three.metadata.uid == one.metadata.uid


@pytest.mark.parametrize(("job", "state"), [("job_train", JobState.RUNNING), ("job_done", JobState.ENDED), ("job_failing", JobState.ENDED)])
def test_recorded_jobs_of_1_20_are_read_and_cannot_be_held(job, state):
    seen = told("1_20", job, "pods_train")
    assert seen.state is state
    assert seen.may_hold is False
    assert seen.world_size == 2
    assert seen.nodes == ("node-1",)


def test_a_recorded_pod_names_its_job():
    (pod,) = read_object((DATA / "1_20" / "pods_train.json").read_bytes(), PodList).items
    seen = pod_status(parse_job("k8s:team/pod/x"), pod)
    assert (seen.state, seen.part_of, seen.may_requeue, seen.may_hold) == (JobState.RUNNING, "k8s:team/job/train", True, False)


@pytest.mark.parametrize(
    ("name", "said", "about"),
    [
        ("absent_job", 'jobs.batch "none" not found', "none"),
        ("conflict_uid", "the UID in the precondition", "train-"),
        ("conflict_version", "the ResourceVersion in the precondition (1)", "train"),
        ("patch_old_version", "the object has been modified", "train"),
        ("patch_wrong_uid", "field is immutable", "train"),
        ("forbidden", 'cannot get resource "jobs" in API group "batch"', "train"),
    ],
)
def test_recorded_refusals_say_what_they_are_about(name, said, about):
    seen = read_refusal((DATA / "1_20" / f"{name}.json").read_bytes())
    assert said in seen.message
    assert seen.details is not None
    assert (seen.details.name or "").startswith(about)


def test_a_group_that_is_not_there_is_refused_in_plain_text():
    assert read_refusal(b"404 page not found\n").details is None


@pytest.mark.parametrize("phase", ["Unknown", "Hibernating", ""])
def test_a_phase_that_we_do_not_know_is_unknown(phase):
    data = json.loads((DATA / "current" / "pods_running.json").read_bytes())
    for pod in data["items"]:
        pod["status"]["phase"] = phase
    doc = read_object((DATA / "current" / "job_running.json").read_bytes(), JobDoc)
    pods = read_object(json.dumps(data).encode(), PodList).items
    assert job_status(parse_job("k8s:team/job/train"), doc, pods).state is JobState.UNKNOWN


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "items", "spec", "status", "uid"]), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_any_json_is_read_or_refused_and_never_crashes(thing):
    for kind in (JobDoc, PodList):
        with contextlib.suppress(BadInput):
            read_object(json.dumps(thing).encode(), kind)


@given(st.text())
def test_foreign_words_become_one_short_plain_line(words):
    line = plain(words)
    assert line.isprintable()
    assert len(line) <= 200


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("2026-11-29T08:00:00.250000Z", 1795939200.25),
        ("2026-13-29T08:00:00Z", None),
        ("2026-11-29T08:00:00+01:00", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_times_are_read_as_the_api_writes_them(stamp, seconds):
    assert unix_s_of(stamp) == seconds


@pytest.mark.parametrize(
    ("job", "namespace", "word", "name"),
    [
        ("k8s:team/job/train", "team", "job", "train"),
        ("k8s:a-1/JobSet/x.y-2", "a-1", "jobset", "x.y-2"),
        ("k8s:t/pod/" + "a" * 63, "t", "pod", "a" * 63),
    ],
)
def test_an_id_names_one_object(job, namespace, word, name):
    seen = parse_job(job)
    assert (seen.namespace, seen.word, seen.name) == (namespace, word, name)
    assert parse_job(seen.id) == seen


@pytest.mark.parametrize(
    "job",
    [
        "k8s:", "k8s:team/train", "k8s:team/job/", "k8s:/job/train", "k8s:team/job/train/x", "k8s:team/deployment/web", "k8s:Team/job/x",
        "k8s:team/job/-x", "k8s:team/job/x-", "k8s:team/job/a..b", "k8s:team/job/..", "k8s:team/job/a,b", "k8s:team/job/a=b",
        "k8s:team/job/a b",
        "k8s:team/job/a\n", "k8s:team/job/a%2fb", "k8s:team/job/a?b", "k8s:team/job/ä", "k8s:team/job/" + "a" * 64, "k8s:te.am/job/x",
        "k8s:team/pod/" + "a." * 127 + "b", "8123", "team/job/train",
    ],
)  # fmt: skip
def test_what_is_no_id_is_refused_with_the_form(job):
    with pytest.raises(BadInput) as refused:
        parse_job(job)
    assert refused.value.help


@given(st.text())
def test_whatever_is_taken_for_an_id_needs_no_escape_in_a_path_or_selector(words):
    try:
        seen = parse_job(f"k8s:team/job/{words}")
    except BadInput:
        return
    assert set(seen.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert seen.selectors[0] == f"job-name={seen.name}"


def test_kubectls_way_of_naming_is_known_and_other_ids_are_not_taken_for_it():
    assert may_mean_kubernetes("team/train")
    assert may_mean_kubernetes("team/job/train")
    assert not any(may_mean_kubernetes(job) for job in ("8123", "8123_4", "rankpatrol-runs", "/tmp/x", "a/b/c/d", "A/b"))
    assert is_kubernetes_id("k8s:x")
    assert not is_kubernetes_id("8123")


def test_what_is_said_to_people_can_be_typed():
    assert release_command("k8s:team/job/train") == """kubectl -n team patch jobs train --type=merge -p '{"spec":{"suspend":false}}'"""
    assert '{"spec":{"runPolicy":{"suspend":false}}}' in release_command("k8s:team/pytorchjob/train")
    assert cordon_advice(("gpu-1", "gpu-2.rack")) == "kubectl cordon gpu-1 gpu-2.rack"
    for node in ("n1; id", "--all", "", "n1 n2", "N1"):
        with pytest.raises(BadInput):
            checked_kubernetes_node(node)
