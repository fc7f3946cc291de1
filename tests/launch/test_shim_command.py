"""`rankpatrol shim -- CMD` under launchers that know nothing of rankpatrol: shells, srun and mpirun by their environment."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_subjects import PRELUDE, Job, gone, heard_ready, wait_for, watched

from rankpatrol.launch.shim.placing import LAUNCHERS, TORCHRUN, Place, place_of

SHIM = [sys.executable, "-m", "rankpatrol", "shim"]
SLURM = {"SLURM_PROCID": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
VIRTUAL = {"LOCAL_RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, Place(3, 1, 8, "torchrun")),
        ({"RANK": "3"}, Place(3, 0, 1, "torchrun")),
        # torchrun --virtual-local-rank
        ({**VIRTUAL, "RANK": "11", "CUDA_VISIBLE_DEVICES": "3"}, Place(11, 3, 16, "torchrun")),
        ({**VIRTUAL, "RANK": "8", "CUDA_VISIBLE_DEVICES": "0"}, Place(8, 0, 16, "torchrun")),
        ({**VIRTUAL, "RANK": "11", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, Place(11, 0, 16, "torchrun")),
        ({**VIRTUAL, "RANK": "11", "CUDA_VISIBLE_DEVICES": "3", "LOCAL_WORLD_SIZE": "4"}, Place(11, 0, 16, "torchrun")),
        ({**VIRTUAL, "RANK": "3", "CUDA_VISIBLE_DEVICES": "3"}, Place(3, 0, 16, "torchrun")),
        (SLURM, Place(2, 1, 4, "Slurm")),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, Place(2, 1, 3, "Slurm")),
        ({**SLURM, "RANK": "7", "WORLD_SIZE": "8"}, Place(7, 0, 8, "torchrun")),
        (OPEN_MPI, Place(1, 1, 2, "Open MPI")),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1"}, Place(5, 1, 6, "PMI")),
        # mpirun in a batch script: the script's own SLURM_PROCID is everybody's.
        ({**OPEN_MPI, "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Place(1, 1, 2, "Open MPI")),
        # A batch script itself is no task of a step.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        ({"RANK": "first"}, None),
        ({"RANK": "-1"}, None),
        ({"RANK": "²"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_found_by_its_launchers_words(environment: Mapping[str, str], place: Place | None) -> None:
    assert place_of(environment) == place


@given(
    st.dictionaries(st.sampled_from([name for words in LAUNCHERS for name in (words.rank, words.local_rank, *words.world_size)]), st.text())
)
def test_no_environment_makes_it_raise(environment: dict[str, str]) -> None:
    place_of(environment)
    place_of(environment, (TORCHRUN,))


def command(code: str, *arguments: str) -> list[str]:
    return [*SHIM, "--", sys.executable, "-u", "-c", PRELUDE + code, *arguments]


def alone(**more: str) -> dict[str, str]:
    """An environment in which nobody told of a job."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RANKPATROL_")} | more


@pytest.mark.parametrize("rank", [{}, {"RANK": "0", "WORLD_SIZE": "1"}])
@pytest.mark.parametrize(("code", "status"), [("sys.exit(7)", 7), ("pass", 0), ("os.kill(os.getpid(), signal.SIGKILL)", -9)])
def test_without_a_job_the_commands_end_is_its_own_at_once(rank: dict[str, str], code: str, status: int) -> None:
    began = time.monotonic()
    done = subprocess.run(command(code), env=alone(**rank), timeout=15, check=False)
    assert done.returncode == status
    assert time.monotonic() - began < 4


def test_without_a_job_input_and_output_are_the_commands_own() -> None:
    done = subprocess.run(
        command("sys.stdout.write(sys.stdin.read())"), env=alone(RANK="0"), input=b"hi\n", capture_output=True, timeout=15, check=True
    )
    assert (done.stdout, done.stderr) == (b"hi\n", b"")


def environment(job: Job, **words: str) -> dict[str, str]:
    """What a rank of a job gets from a launcher of its own."""
    return {**alone(), "RANKPATROL_RUN_DIR": str(job.run_dir.path), **words}


@pytest.mark.parametrize("words", [SLURM, {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"}])
def test_a_rank_is_registered_and_its_output_kept(job: Job, words: dict[str, str]) -> None:
    done = subprocess.run(
        command("print(sys.stdin.read())"), env=environment(job, **words), input=b"hi", capture_output=True, timeout=15, check=True
    )
    assert done.stdout == b"hi\n"
    place = job.place(rank=2)
    assert (place.rank, place.local_rank) == (2, 1)
    assert place.world_size in {2, 4}
    wait_for(lambda: job.log(rank=2).read_bytes() == b"hi\n" or None)
    ended = job.exit(rank=2)
    assert ended is not None
    assert ended.exit_status == 0


def test_the_run_directory_may_be_named(job: Job) -> None:
    words = [*SHIM, "--run-dir", str(job.run_dir.path), "--", "true"]
    subprocess.run(words, env=alone(RANK="0"), timeout=15, check=True)
    assert job.place().world_size == 1


def test_a_signal_reaches_the_rank_and_its_answer_comes_back(job: Job) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); ready(); forever()"
    process = subprocess.Popen(command(code), env=environment(job, RANK="0"), bufsize=0, stdout=subprocess.PIPE)
    assert process.stdout is not None
    heard_ready(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 5
    process.stdout.close()


def test_a_failed_rank_is_not_held_for_more_than_five_seconds_without_an_agent(job: Job) -> None:
    (job.run_dir.path / "released.0.json").unlink(missing_ok=True)
    began = time.monotonic()
    done = subprocess.run(command("sys.exit(3)"), env=environment(job, RANK="0"), timeout=15, check=False)
    assert done.returncode == 3
    assert 4.5 < time.monotonic() - began < 8


def test_a_node_on_which_the_job_is_not_known_is_not_held_at_all(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        command("sys.exit(3)"),
        env=alone(RANK="0", RANKPATROL_RUN_DIR=str(tmp_path / "elsewhere")),
        capture_output=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 3
    assert time.monotonic() - began < 4
    assert b"rank 0 is not seen by the patrol" in done.stderr


def test_a_shell_that_leaves_its_ranks_in_the_background_does_not_take_them_along(job: Job, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"open({str(told)!r}, 'w').write(str(os.getpid())); forever()"
    loop = 'for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "$@" & done'
    subprocess.run(["bash", "-c", loop, "bash", *command(code)], env=environment(job), timeout=15, check=True)
    places = [job.place(rank=rank) for rank in (0, 1)]
    assert {place.attempt for place in places} == {0}, "the second rank belongs to the first, though their shell has gone"
    with watched(*(place.pid for place in places), *(place.shim_pid for place in places)) as pidfds:
        assert not any(gone(pidfd, 2.5) for pidfd in pidfds[:1])
        assert not any(gone(pidfd, 0) for pidfd in pidfds)


def test_under_torchrun_a_lost_launcher_takes_its_ranks_along(job: Job) -> None:
    """torchrun --no-python rankpatrol shim -- python train.py"""
    launcher = f"import subprocess, sys; subprocess.run({command('ready(os.getpid()); forever()')!r})"
    env = environment(job, RANK="0", WORLD_SIZE="1", TORCHELASTIC_RUN_ID="none")
    process = subprocess.Popen([sys.executable, "-c", launcher], env=env, bufsize=0, stdout=subprocess.PIPE)
    with watched(*heard_ready(process)) as (rank,):
        process.kill()
        process.wait(10)
        assert gone(rank, 6)
    assert process.stdout is not None
    process.stdout.close()


def test_ranks_that_are_started_again_are_a_new_attempt(job: Job) -> None:
    job.release(0, 1)
    loop = 'for attempt in 0 1; do for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "$@" & done; wait; done'
    subprocess.run(["bash", "-c", loop, "bash", *command("sys.exit(3)")], env=environment(job), timeout=18, check=False)
    assert [job.place(attempt=attempt, rank=rank).attempt for attempt in (0, 1) for rank in (0, 1)] == [0, 0, 1, 1]


def test_a_launcher_under_it_keeps_its_own_shims(job: Job, tmp_path: Path) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "$PYTHON_EXEC"\n')
    torchrun.chmod(0o755)
    done = subprocess.run(
        [*SHIM, str(torchrun)], env=environment(job, **SLURM, PYTHON_EXEC="the-shim"), capture_output=True, timeout=15, check=True
    )
    assert done.stdout == b"the-shim\n"
    assert list((job.run_dir.path / "claims").iterdir()) == []


def test_a_command_that_is_not_there_has_the_shells_code() -> None:
    done = subprocess.run([*SHIM, "--", "no-such-command-here"], env=alone(RANK="0"), capture_output=True, timeout=15, check=False)
    assert (done.returncode, b"Check the spelling" in done.stderr) == (127, True)


@pytest.mark.timeout(40)
def test_a_shells_ranks_are_watched_by_run(tmp_path: Path) -> None:
    code = "time.sleep(3 if os.environ['RANK'] == '0' else 0.5); sys.exit(0 if os.environ['RANK'] == '0' else 4)"
    loop = 'for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "$@" & done; wait'
    words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job", "bash", "-c", loop, "bash", *command(code)]
    local = Path(f"/tmp/rp-shell-{os.getpid()}")
    local.mkdir()
    done = subprocess.run(words, env=alone(TMPDIR=str(local)), cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "job" / "events.jsonl").read_text().splitlines()]
    started, ended = (next(event for event in events if event["kind"] == kind) for kind in ("attempt_started", "attempt_ended"))
    assert sorted(started["ranks"]) == ["0", "1"]
    assert ended["exit_codes"] == {"0": 0, "1": 4}
    verdict = next(event for event in events if event["kind"] == "verdict")
    assert (verdict["verdict"], verdict["culprit_ranks"]) == ("crash", [1])
    assert list(local.iterdir()) == []
    local.rmdir()
