"""The order in which a job is requeued: from outside with a hold, from inside never; nothing goes on after a step that failed."""

import itertools

import pytest

from clocks import FakeClock
from rankpatrol.act.execute import WrongBundle, execute
from rankpatrol.act.job_hands import JobHands
from rankpatrol.act.job_plan import RequeuePolicy, end_plan, requeue_plan
from rankpatrol.act.job_steps import ConfirmCheckpoint, RequeueJob, in_words
from rankpatrol.act.plan import Verified
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.evidence.bundle import BundleWriter, IncidentRef

SEEN = JobStatus(job="8123", state=JobState.RUNNING, restarts=2, started_unix_s=1.8e9, nodes=("n1", "n2"))


def words(plan):
    return [in_words(step)[0] for step in plan.steps]


def test_from_outside_a_job_is_held_until_its_checkpoint_was_read():
    policy = RequeuePolicy(avoid=("n2",), checkpoints="/ckpt")
    assert words(requeue_plan(SEEN, policy, job="8123")) == [
        "confirm_job",
        "requeue_job_held",
        "exclude_nodes",
        "confirm_checkpoint",
        "release_job",
    ]


def test_from_inside_everything_that_can_fail_comes_before_the_requeue():
    """Nodes are excluded in the same breath: Slurm takes exclusions of an ending job, and never of a running one."""
    policy = RequeuePolicy(avoid=("n2",), checkpoints="/ckpt", inside=True)
    assert words(requeue_plan(SEEN, policy, job="8123")) == ["confirm_checkpoint", "confirm_job", "requeue_job"]
    assert requeue_plan(SEEN, policy, job="8123").steps[-1] == RequeueJob(seen=SEEN, held=False, without=("n2",))
    drained = RequeuePolicy(avoid=("n2",), checkpoints="/ckpt", inside=True, drain=True)
    assert words(requeue_plan(SEEN, drained, job="8123")) == ["confirm_checkpoint", "confirm_job", "drain_nodes", "requeue_job"]


def test_an_end_for_good_confirms_the_job_first():
    plan = end_plan(SEEN, job="8123")
    assert words(plan) == ["confirm_job", "terminate_job"]
    assert (plan.job, plan.attempt, plan.incident) == ("8123", 2, 1)


@pytest.mark.parametrize(
    "policy",
    [
        RequeuePolicy(avoid=avoid, drain=drain, checkpoints=checkpoints, inside=inside, can_hold=can_hold)
        for avoid, drain, checkpoints, inside, can_hold in itertools.product(
            ((), ("n1",)), (False, True), (None, "/ckpt"), (False, True), (False, True)
        )
    ],
)
def test_in_every_case_the_job_is_confirmed_first_and_what_is_held_is_released_last(policy):
    steps = requeue_plan(SEEN, policy, job="8123").steps
    order = [in_words(step)[0] for step in steps]
    requeue = next(step for step in steps if isinstance(step, RequeueJob))
    assert order.index("confirm_job") < steps.index(requeue)
    assert requeue.held == (policy.can_hold and not policy.inside)
    assert (order[-1] == "release_job") == requeue.held
    assert all(step.held == requeue.held for step in steps if isinstance(step, ConfirmCheckpoint))
    if not requeue.held and policy.checkpoints:
        assert order.index("confirm_checkpoint") < steps.index(requeue)


class RecordingJobs:
    """Does nothing and remembers what it was asked."""

    name = "recording"

    def __init__(self, now=SEEN, **problems):
        self.now, self.problems, self.asked = now, problems, []

    def describe(self, job):
        return self.now

    def processes(self, job):
        return Missing("none")

    def _did(self, what):
        self.asked.append(what)
        return self.problems.get(what, "")

    def terminate(self, seen):
        return self._did("terminate")

    def requeue(self, seen, *, held, without=()):
        return self._did("requeuehold" if held else "requeue")

    def avoid(self, job, nodes, how):
        return self._did(how)

    def release(self, job):
        return self._did("release")


GOOD = Verified(path="/ckpt/step_10.pt", step=10)


def carry_out(tmp_path, jobs, plan, *, checkpoint=GOOD, why_not=lambda: "", attempt=2):
    clock, told = FakeClock(), []
    with BundleWriter(tmp_path / "bundle", clock) as writer:
        writer.add("diagnosis.json", b"{}")
        bundle = writer.seal(IncidentRef(job="8123", attempt=attempt, incident=1, onset_unix_s=1.8e9))
    hands = JobHands(scheduler=jobs, checkpoint=lambda _: checkpoint, why_not=why_not)
    done = execute(plan, bundle, hands, clock, told.append)
    return done, [(report.what, report.why) for report in told if report.done is not None]


OUTSIDE = requeue_plan(SEEN, RequeuePolicy(avoid=("n2",), checkpoints="/ckpt"), job="8123")


def test_all_steps_are_done_in_order(tmp_path):
    jobs = RecordingJobs()
    done, told = carry_out(tmp_path, jobs, OUTSIDE)
    assert done
    assert jobs.asked == ["requeuehold", "exclude", "release"]
    assert ("confirm_checkpoint", "/ckpt/step_10.pt") in told


def test_without_a_good_checkpoint_the_job_stays_held(tmp_path):
    jobs = RecordingJobs()
    done, told = carry_out(tmp_path, jobs, OUTSIDE, checkpoint=Missing("no good checkpoint in /ckpt"))
    assert not done
    assert jobs.asked == ["requeuehold", "exclude"]
    assert told[-1] == ("confirm_checkpoint", "no good checkpoint in /ckpt; the job stays held until somebody releases it")


@pytest.mark.parametrize(
    "now",
    [
        JobStatus(job="8123", state=JobState.UNKNOWN, reason="no answer from Slurm"),
        JobStatus(job="8123", state=JobState.ENDED, said="COMPLETED"),
        JobStatus(job="8123", state=JobState.RUNNING, restarts=3, started_unix_s=1.9e9),
    ],
)
def test_a_job_that_is_not_what_was_seen_is_not_touched(tmp_path, now):
    jobs = RecordingJobs(now)
    done, told = carry_out(tmp_path, jobs, OUTSIDE)
    assert not done
    assert jobs.asked == []
    assert told[0][1].startswith("nothing was done")


def test_a_lease_that_is_lost_stops_the_plan_where_it_stands(tmp_path):
    words_of_lease = iter(["", "", "somebody else has taken over this job"])
    jobs = RecordingJobs()
    done, _ = carry_out(tmp_path, jobs, OUTSIDE, why_not=lambda: next(words_of_lease))
    assert not done
    assert jobs.asked == ["requeuehold"]


def test_the_evidence_of_another_run_of_the_job_proves_nothing(tmp_path):
    jobs = RecordingJobs()
    with pytest.raises(WrongBundle, match="not of this one"):
        carry_out(tmp_path, jobs, OUTSIDE, attempt=1)
    assert jobs.asked == []
