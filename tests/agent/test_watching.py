"""Attaching to processes that look like ranks: real ones, plain Python."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest

from rankpatrol.agent.attachment import Attachment
from rankpatrol.agent.watching import Wanted, look_around
from rankpatrol.cli.main import call
from rankpatrol.launch.rundir import JobSpec, RankPlace

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
WORKS = """
import select, sys
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    sum(range(20000))
"""


@contextmanager
def ranks(*codes, port="29871"):
    """One process for each code, with a launcher's variables; gone when the block is left."""
    with ExitStack() as stack:
        started = []
        for number, code in enumerate(codes):
            variables = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(len(codes)), "MASTER_PORT": port}
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
            process.stdout.readline()
        yield started


def spec(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    return JobSpec(
        job="job", job_dir=str(folder), command=(), policy="observe", patience_s=20.0, checkpoints=None, started_unix_s=0.0, attached=True
    )


def test_running_ranks_are_found_by_any_of_their_pids():
    with ranks(WAITS, WAITS) as (zero, one):
        (job,), _ = look_around(Wanted(pid=one.pid))
        assert {rank.rank: rank.process.pid for rank in job.ranks} == {0: zero.pid, 1: one.pid}


def test_a_rank_that_comes_back_as_another_process_is_a_new_attempt(tmp_path):
    with ranks(WAITS, WAITS) as (zero, _):
        (first,), _ = look_around(Wanted(pid=zero.pid))
    with ranks(WAITS, WAITS) as (zero, _):
        (second,), _ = look_around(Wanted(pid=zero.pid))
    attachment = Attachment(first, spec(tmp_path))
    try:
        attachment.register(first)
        attachment.register(first)
        attachment.register(second)
        places = attachment.run_dir.places()
        assert [(place.attempt, place.rank) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert isinstance(attachment.run_dir.read("ranks/1.0.json", RankPlace), RankPlace)
    finally:
        attachment.run_dir.remove()


def test_ranks_that_work_are_healthy_at_a_glance(capsys):
    with ranks(WORKS, WORKS) as (zero, _):
        assert call(["watch", "--pid", str(zero.pid), "--once", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["jobs"][0]["diagnosis"]["verdict"] == "healthy"


def test_ranks_that_only_sleep_are_not_called_a_hang(capsys):
    with ranks(WAITS, WAITS) as (zero, _):
        assert call(["watch", "--pid", str(zero.pid), "--once", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["jobs"][0]["diagnosis"]["verdict"] == "undetermined"


def test_a_watch_ends_with_its_job_and_leaves_a_job_directory(tmp_path):
    with ranks(WORKS, WORKS) as (zero, one):
        words = [sys.executable, "-m", "rankpatrol", "watch", "--pid", str(zero.pid), "--job-dir", str(tmp_path / "job")]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as watch, ExitStack() as stack:
            stack.callback(watch.kill)
            told = iter(watch.stderr.readline, "")
            assert any("watching 2 ranks, attempt 0" in line for line in told)
            zero.send_signal(signal.SIGKILL)
            one.send_signal(signal.SIGKILL)
            zero.wait()
            one.wait()
            watch.communicate()
            assert watch.returncode == 0
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "job" / "events.jsonl").read_text().splitlines()]
    assert kinds[0] == "job_started"
    assert kinds[-1] == "job_ended"


@pytest.mark.timeout(60)
def test_a_watch_serves_metrics_as_long_as_it_watches(tmp_path):
    folder = tmp_path / "textfiles"
    folder.mkdir()
    options = ("--metrics", "127.0.0.1:0", "--metrics-textfile", str(folder), "--job-dir", str(tmp_path / "job"))
    with ranks(WORKS, WORKS) as (zero, _):
        words = [sys.executable, "-m", "rankpatrol", "watch", "--pid", str(zero.pid), *options]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as watch, ExitStack() as stack:
            stack.callback(watch.kill)
            told = iter(watch.stderr.readline, "")
            url = next(line for line in told if "metrics: http" in line).split("metrics: ")[1].strip()
            until = time.monotonic() + 20
            while b'policy="observe"' not in urllib.request.urlopen(url, timeout=10).read():
                assert time.monotonic() < until  # there is nothing before the first round
                time.sleep(0.1)
            watch.send_signal(signal.SIGINT)
            watch.communicate()
            assert watch.returncode == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "help_words"),
    [
        (["watch"], 64, "Give one of --pid PID, --job ID or --all"),
        (["watch", "--all", "--json"], 64, "--json goes with --once"),
        (["watch", "--all", "--once", "--record"], 64, "Leave --once out"),
        (["watch", "--pid", "2", "--once"], 65 if os.getuid() == 0 else 77, "no distributed training is seen of pid 2"),
        (["watch", "--job", "no-such-job", "--once"], 65, "Seen here:"),
    ],
)
def test_wrong_words_say_what_to_do(capsys, words, code, help_words):
    assert call(words) == code
    assert help_words in capsys.readouterr().err


def test_of_one_that_is_gone_nothing_is_known():
    assert look_around(Wanted(job="no-such-job"))[0] == ()
