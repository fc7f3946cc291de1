"""What every scheduler promises, held against each adapter with real jobs."""

import pytest
from msgspec.structs import replace
from sites import Site, wait_for

from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.system.process import identify

pytestmark = pytest.mark.timeout(90)
HOSTILE = (
    "k8s:",
    "k8s:../../x",
    "k8s:a/job/b,c=d",
    "k8s:a/job/b?x=1",
    "k8s:a/job/b%2fc",
    "k8s:a/b/c/d",
    "k8s:A/job/b",
    "",
    "-",
    "--all",
    "1; touch /tmp/pwned",
    "$(id)",
    "1,2",
    "../..",
    "a\nb",
    "1 -u root",
    "\0",
)


def test_a_running_job_is_described(site: Site):
    seen = site.scheduler.describe(site.start())
    assert seen.state is JobState.RUNNING, seen
    assert seen.restarts == 0
    assert seen.started_unix_s is not None
    assert len(seen.nodes) == 1
    assert (seen.is_batch, seen.may_requeue) == (True, True)


def test_its_processes_on_this_node_are_found(site: Site):
    seen = site.scheduler.describe(site.start())
    found = site.scheduler.processes(seen.job)
    assert not isinstance(found, Missing), found
    assert found
    assert all(identify(each.process.pid) == each.process for each in found)


def test_a_job_that_never_was_is_unknown_and_nothing_is_done_for_it(site: Site):
    scheduler = site.scheduler
    seen = scheduler.describe(site.unknown)
    assert seen.state is JobState.UNKNOWN
    assert seen.reason
    assert isinstance(scheduler.processes(site.unknown), Missing)
    pretended = replace(seen, state=JobState.RUNNING, restarts=0, started_unix_s=1.0)
    assert scheduler.terminate(pretended).startswith("nothing was done")
    assert scheduler.requeue(pretended, held=False).startswith("nothing was done")


@pytest.mark.parametrize("job", HOSTILE)
def test_words_that_are_no_id_are_unknown(site: Site, job: str):
    assert site.scheduler.describe(job).state is JobState.UNKNOWN
    assert site.scheduler.terminate(JobStatus(job=job, state=JobState.RUNNING, restarts=0)).startswith("nothing was done")


def test_a_job_is_ended_for_good_and_ending_it_again_is_refused(site: Site):
    seen = site.scheduler.describe(site.start())
    assert site.scheduler.terminate(seen) == ""
    assert site.scheduler.describe(seen.job).state is JobState.ENDED
    assert site.scheduler.terminate(seen).startswith("nothing was done")


def test_a_finished_job_is_not_started_again(site: Site):
    seen = site.scheduler.describe(site.finished())
    assert seen.state is JobState.ENDED, seen
    assert site.scheduler.requeue(seen, held=False).startswith("nothing was done")
    assert site.scheduler.describe(seen.job).state is JobState.ENDED


def test_a_requeued_job_runs_again_and_what_was_seen_before_counts_no_more(site: Site):
    seen = site.scheduler.describe(site.start())
    assert site.scheduler.requeue(seen, held=False) == ""
    wait_for(lambda: site.scheduler.describe(seen.job).state is JobState.RUNNING, 40)
    now = site.scheduler.describe(seen.job)
    assert now.restarts == 1 or not site.counts_restarts
    assert now.life != seen.life
    assert "started again since" in site.scheduler.terminate(seen)
    after = site.scheduler.describe(seen.job)
    # The count itself may go down again: Kubernetes 1.20 forgets a failed pod that is deleted.
    assert (after.state, after.run, after.started_unix_s) == (JobState.RUNNING, now.run, now.started_unix_s)
