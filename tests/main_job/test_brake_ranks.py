"""The brake under a real torchrun: what another attempt would not mend ends the job, and failures in a row are answered with pauses."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

from rankpatrol.drill.events import EventFile
from rankpatrol.drill.runner import environment, kept

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(200)]
TRAINING = Path(__file__).with_name("brake_training.py")
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")  # of version 1; in version 2 the machine's owner must hand the controller on
SMALL_BYTES = 64 << 20


def run(folder, *words, options=()):
    """Two ranks under patrol to their end: the exit code, the events, and what was said."""
    job, said = folder / "job", folder / "said.txt"
    command = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", str(job), "--patience", "20s", *options]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TRAINING), *words]
    with kept([*command, *launcher], environment({"OMP_NUM_THREADS": "1"}), left_file=folder / "left.txt", output=said) as keeper:
        code = keeper.wait(180)
    assert (folder / "left.txt").read_text() == ""
    return code, EventFile(job / "events.jsonl").look(), said.read_text()


def last_verdict(events):
    return [event for event in events if event.kind == "verdict"][-1]


def attempts(events):
    return [event.attempt for event in events if event.kind == "attempt_started"]


def actions_after_seal(events):
    """What was done, each behind the sealed bundle of its own incident."""
    sealed = {event.incident: event.at_unix_s for event in events if event.kind == "bundle_sealed"}
    done = [event for event in events if event.kind == "action" and event.done]
    assert all(sealed[event.incident] <= event.at_unix_s for event in done)
    return [event.what for event in done]


def test_a_save_onto_a_full_disk_ends_the_job(tmp_path):
    code, events, said = run(tmp_path, "disk")
    verdict = last_verdict(events)
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("stop", "disk_full", (0,)), said
    assert "another attempt would not find more room" in verdict.sentence
    assert (attempts(events), actions_after_seal(events)) == ([0], ["end_job"])
    assert code != 0


@pytest.fixture
def small_group():
    """A control group that holds little memory."""
    group = MEMORY_GROUPS / f"rankpatrol-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(SMALL_BYTES))
    except OSError as problem:
        pytest.skip(f"no memory control group can be made here: {problem.strerror}")
    yield group
    with contextlib.suppress(OSError):
        group.rmdir()


def test_memory_that_does_not_suffice_for_loading_ends_the_job(tmp_path, small_group):
    code, events, said = run(tmp_path, "memory", str(small_group))
    verdict = last_verdict(events)
    assert (verdict.verdict, verdict.cause, verdict.culprit_ranks) == ("stop", "host_oom_kill", (0,)), said
    assert "the next attempt would load the same" in verdict.sentence
    assert (attempts(events), actions_after_seal(events)) == ([0], ["end_job"])
    assert code != 0


def test_from_the_third_failure_on_the_next_attempt_waits_and_each_time_longer(tmp_path):
    options = ("--max-restarts", "5", "--first-pause", "4s", "--longest-pause", "9s")
    code, events, said = run(tmp_path, "elsewhere", "5", options=options)
    assert attempts(events) == [0, 1, 2, 3, 4, 5], said
    assert [line.split(" starts in ")[0][-1] for line in said.splitlines() if " starts in " in line] == ["3", "4", "5"], said
    failed = {event.attempt: event.at_unix_s for event in events if event.kind == "verdict"}
    began = {event.attempt: event.at_unix_s for event in events if event.kind == "attempt_started"}
    waited = [began[attempt + 1] - failed[attempt] for attempt in (2, 3, 4)]
    assert [wait >= pause for wait, pause in zip(waited, (4, 8, 9), strict=True)] == [True] * 3, waited
    assert code == 0


def test_one_failure_more_than_the_hour_may_hold_ends_the_job(tmp_path):
    options = ("--max-restarts", "9", "--failures-per-hour", "2", "--first-pause", "0s")
    code, events, said = run(tmp_path, "elsewhere", "5", options=options)
    verdict = last_verdict(events)
    assert (verdict.verdict, verdict.cause) == ("stop", "repeated_failure"), said
    assert "3 failures within an hour, more than the 2 it may have" in verdict.sentence
    assert attempts(events) == [0, 1, 2]
    assert code != 0
