"""Nothing is ended without the fresh evidence of this very incident, and every step is told before and after."""

import pytest

from clocks import FakeClock
from rankpatrol.act.execute import FRESH_S, WrongBundle, execute
from rankpatrol.act.plan import ActionPlan, EndAttempt, Outlook, ResumeFrom, Verified, next_start, plan, stop
from rankpatrol.core.starts import NextStart
from rankpatrol.evidence.bundle import BundleWriter, IncidentRef
from rankpatrol.schedulers.port import EndReport


class RecordingScheduler:
    """Does nothing and remembers what it was asked."""

    name = "recording"

    def __init__(self, failed=None, full=False):
        self.asked, self.failed, self.full = [], failed or {}, full

    def describe(self):
        return {}

    def resume_from(self, start):
        if self.full:
            raise OSError(28, "No space left on device")
        self.asked.append(("resume_from", start))
        return start.checkpoint

    def end_job(self):
        self.asked.append(("end_job",))
        return ""

    def end_attempt(self, attempt, grace_s):
        self.asked.append(("end_attempt", attempt))
        return EndReport(ended=(0, 1), failed=self.failed)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def sealed(tmp_path, clock):
    """A function that seals the bundle of an incident."""

    def seal(job="job", attempt=0, incident=1):
        with BundleWriter(tmp_path / f"{job}.{attempt}.{incident}", clock) as writer:
            writer.add("diagnosis.json", b"{}")
            return writer.seal(IncidentRef(job=job, attempt=attempt, incident=incident, onset_unix_s=1.8e9))

    return seal


START = next_start(1, Verified(path="/ckpt/step_10.pt", step=10), Outlook())
PLAN = plan(job="job", incident=1, start=START)


def carry_out(bundle, clock, scheduler, wanted=PLAN):
    told = []
    done = execute(wanted, bundle, scheduler, clock, told.append)
    return done, [(report.what, report.done) for report in told]


def test_a_plan_fixes_the_checkpoint_before_it_ends_anything():
    assert (
        ActionPlan(
            job="job",
            attempt=0,
            incident=1,
            steps=(ResumeFrom(NextStart(attempt=1, checkpoint="/ckpt/step_10.pt", step=10)), EndAttempt(attempt=0, grace_s=5.0)),
        )
        == PLAN
    )
    assert next_start(1, None, Outlook()) == NextStart(attempt=1, checkpoint="", step=None)


def test_each_step_is_told_before_and_after(sealed, clock):
    scheduler = RecordingScheduler()
    done, told = carry_out(sealed(), clock, scheduler)
    assert done
    assert told == [("resume_from", None), ("resume_from", True), ("end_attempt", None), ("end_attempt", True)]
    assert scheduler.asked == [("resume_from", START), ("end_attempt", 0)]


@pytest.mark.parametrize("other", [{"job": "another"}, {"attempt": 1}, {"incident": 2}])
def test_the_evidence_of_another_incident_proves_nothing(sealed, clock, other):
    scheduler = RecordingScheduler()
    with pytest.raises(WrongBundle, match="not of this one"):
        carry_out(sealed(**other), clock, scheduler)
    assert scheduler.asked == []


@pytest.mark.parametrize("age_s", [FRESH_S + 1, -5.0])
def test_evidence_that_is_old_or_from_the_future_proves_nothing(sealed, clock, age_s):
    bundle, scheduler = sealed(), RecordingScheduler()
    clock.advance(age_s)
    with pytest.raises(WrongBundle, match="no longer shows"):
        carry_out(bundle, clock, scheduler)
    assert scheduler.asked == []


def test_a_step_that_fails_stops_the_plan_before_anything_is_ended(sealed, clock):
    scheduler = RecordingScheduler(full=True)
    done, told = carry_out(sealed(), clock, scheduler)
    assert not done
    assert told == [("resume_from", None), ("resume_from", False)]
    assert scheduler.asked == []


def test_a_stop_ends_the_job_and_starts_nothing(sealed, clock):
    scheduler = RecordingScheduler()
    assert carry_out(sealed(), clock, scheduler, stop(job="job", attempt=0, incident=1)) == (True, [("end_job", None), ("end_job", True)])
    assert scheduler.asked == [("end_job",)]


def test_a_rank_that_cannot_be_ended_is_reported(sealed, clock):
    told = []
    assert not execute(PLAN, sealed(), RecordingScheduler(failed={3: "it did not end even by SIGKILL"}), clock, told.append)
    assert told[-1].why == "rank 3: it did not end even by SIGKILL"
