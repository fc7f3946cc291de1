"""When another node may help, and when it would only fail there as well."""

import pytest
from msgspec.structs import replace

from rankpatrol.act.escalation import MOST_REQUEUES, why_no_requeue
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


def test_a_rank_that_fails_again_and_again_may_run_elsewhere():
    assert why_no_requeue(STOP, "sigbus", JOB) == ""


def test_a_programs_own_exception_would_be_raised_anywhere():
    assert why_no_requeue(STOP, "user_exception", JOB) == "user_exception would meet it on any node"


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
    assert why in why_no_requeue(replace(STOP, **stop), None, replace(JOB, **job))
