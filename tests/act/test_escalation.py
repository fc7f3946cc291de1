"""When another node may help, and when it would only fail there as well."""

import pytest
from msgspec.structs import replace

from rankpatrol.act.escalation import MOST_REQUEUES, Stopped, why_no_requeue
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.jobs import JobState, JobStatus

STOP = Diagnosis(
    verdict="stop",
    cause="repeated_failure",
    culprit_ranks=(3,),
    certainty=Certainty.PROVED,
    sentence="the same failure 3 times in a row: no further attempt",
)
JOB = JobStatus(job="8123", state=JobState.RUNNING, restarts=0, nodes=("n1",), is_batch=True, may_requeue=True)


def stopped(**other):
    return Stopped(**{"diagnosis": STOP, "job": JOB, "seen": ("n1",), "suspects": ("n1",), **other})


def test_a_rank_that_fails_again_and_again_may_run_elsewhere():
    assert why_no_requeue(stopped(failed_of="sigbus")) == ""


def test_a_job_of_several_nodes_goes_on_without_the_culprits():
    job = replace(JOB, nodes=("n1", "n2", "n3"))
    assert why_no_requeue(stopped(job=job, seen=("n1", "n2", "n3"), suspects=("n2",))) == ""
    assert why_no_requeue(stopped(job=job, seen=("n1", "n3"), suspects=("n3",))) == "it has 3 nodes, and what n2 does is not seen from here"
    assert "on all its 3 nodes" in why_no_requeue(stopped(job=job, seen=job.nodes, suspects=job.nodes))
    assert "none that Slurm names" in why_no_requeue(stopped(job=job, seen=job.nodes, suspects=("container-7",)))


def test_a_heterogeneous_job_is_left_to_a_person():
    assert "heterogeneous job of 2 components" in why_no_requeue(stopped(components=2))


def test_a_programs_own_exception_would_be_raised_anywhere():
    assert why_no_requeue(stopped(failed_of="user_exception")) == "user_exception would meet it on any node"


@pytest.mark.parametrize(
    ("stop", "job", "why"),
    [
        ({"verdict": "zombie_job"}, {}, "its work is done"),
        ({"file": "/data/shard-0042.tar"}, {}, "every node reads /data/shard-0042.tar"),
        ({"cause": "host_oom_kill"}, {}, "host_oom_kill would meet it on any node"),
        ({"culprit_ranks": None}, {}, "no rank is named"),
        ({}, {"nodes": ("n1", "n2")}, "it has 2 nodes"),
        ({}, {"nodes": ()}, "it has 0 nodes"),
        ({}, {"is_batch": False}, "only batch jobs"),
        ({}, {"may_requeue": False}, "--no-requeue"),
        ({}, {"restarts": MOST_REQUEUES}, "requeued 2 times already"),
        ({}, {"restarts": None}, "not known"),
    ],
)
def test_where_it_would_not_help_the_reason_is_said(stop, job, why):
    assert why in why_no_requeue(stopped(diagnosis=replace(STOP, **stop), job=replace(JOB, **job)))
