"""What real Slurms of two generations print, as text and as JSON, reads alike."""

from pathlib import Path

import msgspec
import pytest

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState
from rankpatrol.schedulers.slurm_json import read_json
from rankpatrol.schedulers.slurm_text import read_attempts, read_avoided, read_jobs, read_steps, seconds_of

DATA = Path(__file__).parent.parent / "data" / "schedulers"
VERSIONS = ("22_05", "24_11")


def text_jobs(version):
    return {job.job: job for job in read_jobs((DATA / version / "jobs.txt").read_text())}


def json_jobs(version):
    return {job.job: job for job in read_json((DATA / version / "squeue.json").read_bytes())}


@pytest.mark.parametrize("version", VERSIONS)
def test_text_and_json_tell_the_same(version):
    text, told = text_jobs(version), json_jobs(version)
    # Without `-t all` 24.11 leaves ended jobs out of its JSON, and 22.05 does not.
    assert {job for job in text if text[job].state is not JobState.ENDED} <= told.keys() <= text.keys()
    for job, other in told.items():
        seen = text[job]
        # What an ended or pending job's flags and reasons are called differs between the two; what is acted upon does not.
        for name in ("local_id", "restarts", "is_batch", "may_requeue", "world_size", "queued_unix_s", "started_unix_s", "held"):
            assert getattr(seen, name) == getattr(other, name), (job, name)
        assert seen.state == other.state, job


def test_each_state_of_the_recorded_scene_is_told():
    jobs = text_jobs("24_11")
    assert {job: (seen.state, seen.restarts) for job, seen in jobs.items()} == {
        "1": (JobState.ENDING, 1),
        "2": (JobState.PENDING, 1),
        "3_1": (JobState.RUNNING, 0),
        "3_2": (JobState.RUNNING, 0),
        "4": (JobState.RUNNING, 0),
        "5": (JobState.PENDING, 0),
        "6": (JobState.ENDED, 0),
        "7": (JobState.SUSPENDED, 0),
    }
    assert jobs["2"].held
    assert not jobs["5"].held
    assert jobs["4"].may_requeue is False
    assert jobs["4"].time_limit_s == 26 * 3600 + 4 * 60
    assert jobs["3_1"].nodes == ("n2",)
    assert jobs["5"].started_unix_s is None
    assert jobs["5"].expected_unix_s is not None


def test_a_job_of_srun_is_no_batch_job():
    assert text_jobs("22_05")["3"].is_batch is False


def test_a_task_of_an_array_is_never_called_by_the_arrays_number():
    jobs = text_jobs("22_05")
    assert jobs["10_2"].local_id == "10"
    assert "10" not in jobs


def test_a_name_that_imitates_fields_changes_nothing():
    """Job 8 of 22.05 and job 1 of 24.11 are called "evil|name JobState=FAILED"."""
    assert text_jobs("22_05")["8"].state is JobState.ENDING
    assert json_jobs("22_05")["8"].state is JobState.ENDING


def test_excluded_nodes_steps_and_past_attempts_are_read():
    assert read_avoided((DATA / "22_05" / "avoided.txt").read_text())["9"] == ("n2", "n4")
    assert "8.0 on n1, n2" in read_steps((DATA / "22_05" / "steps.txt").read_text())
    first, second, third = read_attempts(
        "8|REQUEUED|0:0|1795975925|1795975934|n[1-2]\n8|CANCELLED by 0|1:0|1795975950|1795975960|n3\n8|RUNNING|0:0|1|Unknown|n3"
    )
    assert (first.said, first.nodes, first.ended_unix_s) == ("REQUEUED", ("n1", "n2"), 1795975934.0)
    assert (second.said, third.ended_unix_s) == ("CANCELLED", None)
    assert (first.exit_status, second.exit_status) == (None, 1), "0:0 of what was requeued is no exit"
    (done,) = read_attempts("8|COMPLETED|0:0|1795975925|1795975934|n1")
    assert done.exit_status == 0


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("30:00", 1800.0), ("1-02:03:04", 93784.0), ("2:00:00", 7200.0), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_time_limits_are_seconds(limit, seconds):
    assert seconds_of(limit) == seconds


def test_lines_of_another_shape_are_left_out():
    assert read_jobs("slurm_load_jobs error: Invalid job id specified\n1|2\n\n") == ()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"jobs": 3}', b"slurm_load_jobs error"])
def test_what_is_no_json_of_squeue_is_said(data):
    with pytest.raises(BadInput, match="this is not JSON of squeue"):
        read_json(data)


def test_rows_of_other_shapes_are_not_guessed():
    rows = [{"job_id": "x"}, 7, {"job_id": 9}, {"job_id": 10, "job_state": ["RUNNING"], "restart_cnt": None, "start_time": {"set": False}}]
    unknown, running = read_json(msgspec.json.encode({"jobs": rows}))
    assert unknown.state is JobState.UNKNOWN
    assert (running.state, running.restarts, running.started_unix_s) == (JobState.RUNNING, None, None)
