"""Folders that hold logs, stacks and recordings of one job: one answer, and the other words as reasons or doubts."""

import shutil
from pathlib import Path

import pytest

from log_texts import waited
from rankpatrol.analysis.told.together import together
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.intake.diagnose import diagnose

RECORDED = Path(__file__).parent.parent / "data" / "flight_recorder"
TRACEBACK = (
    "[rank{r}]: Traceback (most recent call last):\n"
    '[rank{r}]:   File "/w/data.py", line 71, in collate\n'
    "[rank{r}]: ValueError: shard 00412 is truncated\n"
)
STACK = 'Process {pid}: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread {pid} (active): "MainThread"\n{frames}\n'
WAITS = (
    "    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    sync (trainer/loop.py:88)\n"
    "    train (trainer/loop.py:40)\n    <module> (train.py:12)"
)
ALONE = (
    "    barrier (torch/distributed/distributed_c10d.py:4159)\n    save_best (trainer/loop.py:71)\n"
    "    train (trainer/loop.py:44)\n    <module> (train.py:12)"
)


def dumps(folder, name, ranks=range(4)):
    for rank in ranks:
        shutil.copyfile(RECORDED / name / f"rank{rank}.pickle", folder / f"nccl_trace_rank_{rank}")


def logs(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)


def stacks(folder, odd, world=4):
    for rank in range(world):
        frames = ALONE if rank == odd else WAITS
        (folder / f"rank{rank}.stack.txt").write_text(STACK.format(pid=500 + rank, frames=frames))


def answer(folder):
    return diagnose((str(folder),)).diagnosis


def test_an_exception_in_a_log_is_why_its_rank_is_missing_in_the_dumps(tmp_path):
    dumps(tmp_path, "hang")
    missing = answer(tmp_path).culprit_ranks
    assert missing is not None
    (rank,) = missing
    logs(tmp_path, **{f"rank{rank}": TRACEBACK.format(r=rank)})
    found = answer(tmp_path)
    assert (found.cause, found.culprit_ranks) == ("rank_exception_peers_wait", (rank,))
    assert "ValueError" in found.sentence


def test_dumps_name_whom_time_outs_alone_do_not(tmp_path):
    dumps(tmp_path, "hang")
    (rank,) = answer(tmp_path).culprit_ranks
    logs(tmp_path, job="".join(waited(other) for other in range(4) if other != rank)[: -len(waited(3)) if rank != 3 else None])
    found = answer(tmp_path)
    assert (found.verdict, found.culprit_ranks) == ("hang", (rank,))


def test_an_exception_of_another_rank_is_told_with_the_dumps_as_a_doubt(tmp_path):
    dumps(tmp_path, "hang")
    (rank,) = answer(tmp_path).culprit_ranks
    other = (rank + 1) % 4
    logs(tmp_path, **{f"rank{other}": TRACEBACK.format(r=other)})
    found = answer(tmp_path)
    assert found.culprit_ranks == (other,)
    assert any("also told" in doubt and f"rank {rank}" in doubt for doubt in found.reasons_against)


def test_stacks_of_a_file_a_rank_are_one_scene(tmp_path):
    stacks(tmp_path, odd=2)
    found = answer(tmp_path)
    assert (found.verdict, found.culprit_ranks) == ("hang", (2,))


def test_the_stacks_culprit_goes_before_the_victims_of_the_log(tmp_path):
    stacks(tmp_path, odd=2)
    logs(tmp_path, job="WORLD_SIZE=4\n" + waited(0) + waited(1))
    found = answer(tmp_path)
    assert (found.verdict, found.culprit_ranks) == ("hang", (2,))
    assert any("time-out" in reason for reason in found.reasons_for)


def test_a_kill_for_memory_of_a_rank_that_is_not_said_is_suspected_of_the_missing_one(tmp_path):
    dumps(tmp_path, "hang")
    (rank,) = answer(tmp_path).culprit_ranks
    logs(tmp_path, kernel="gpu-3 kernel: Out of memory: Killed process 40177 (python) total-vm:881233312kB, anon-rss:402331120kB\n")
    found = answer(tmp_path)
    assert (found.cause, found.culprit_ranks, found.certainty) == ("host_oom_kill", (rank,), "suspected")


def test_dumps_of_a_job_that_runs_do_not_make_a_healthy_log_a_hang(tmp_path):
    dumps(tmp_path, "ok")
    steps = "".join(f"2026-05-04 09:00:{at:02} step {at} loss 2.1\n" for at in range(0, 50, 5))
    logs(tmp_path, job=f"{steps}-- now=2026-05-04 09:00:51 --\n")
    assert answer(tmp_path).verdict == "healthy"


def said(verdict, cause, ranks=None, certainty=Certainty.SUPPORTED, awaited=None):
    return Diagnosis(
        verdict=verdict, cause=cause, culprit_ranks=ranks, awaited_ranks=awaited, certainty=certainty, sentence=f"{cause} of {ranks}"
    )


# Logs, stacks, recordings, and the (verdict, cause, culprits) of all three.
MIXES = [
    (said("crash", "gpu_oom", (5,)), None, said("hang", "rank_missing_collective", (5,)), ("crash", "gpu_oom", (5,))),
    (said("crash", "unknown"), said("hang", "data_loader_worker_stuck", (3,)), None, ("hang", "data_loader_worker_stuck", (3,))),
    (said("hang", "rank_missing_collective", (3,)), said("hang", "rank_stopped", (6,)), None, ("hang", "rank_stopped", (6,))),
    (said("crash", "checkpoint_io_slow", (2,)), None, said("hang", "rank_missing_collective", (2,)), ("crash", "checkpoint_io_slow", (2,))),
    (said("crash", "unknown"), said("benign_wait", "checkpoint_io_slow", awaited=(2,)), None, ("crash", "checkpoint_io_slow", (2,))),
    (None, said("hang", "filesystem_stall", (1,)), said("hang", "rank_missing_collective", (1,)), ("hang", "filesystem_stall", (1,))),
    (said("shutdown", "preempted_or_cancelled"), None, said("hang", "unknown", (1,)), ("shutdown", "preempted_or_cancelled", None)),
    (said("crash", "sigkill", (4,)), said("hang", "unknown", (4,)), said("hang", "unknown", (4,)), ("crash", "sigkill", (4,))),
    (said("healthy", "none"), said("hang", "unknown", (1,), Certainty.SUSPECTED), None, ("healthy", "none", None)),
    (said("undetermined", "unknown"), None, said("hang", "collective_mismatch_op", (1,)), ("hang", "collective_mismatch_op", (1,))),
    (said("crash", "host_oom_kill"), None, said("hang", "rank_missing_collective", (1, 2)), ("crash", "host_oom_kill", None)),
]  # fmt: skip


@pytest.mark.parametrize(("log", "stack", "recording", "expected"), MIXES)
def test_each_mix_has_one_answer(log, stack, recording, expected):
    found = together(log, stack, recording)
    assert found is not None
    assert (found.verdict, found.cause, found.culprit_ranks) == expected


@pytest.mark.parametrize(("log", "stack", "recording", "expected"), MIXES)
def test_taking_evidence_away_never_makes_the_same_answer_surer(log, stack, recording, expected):
    order = [Certainty.SUSPECTED, Certainty.SUPPORTED, Certainty.PROVED]
    whole = together(log, stack, recording)
    for less in (together(None, stack, recording), together(log, None, recording), together(log, stack, None)):
        if less is not None and (less.verdict, less.cause, less.culprit_ranks) == expected:
            assert order.index(less.certainty) <= order.index(whole.certainty)
