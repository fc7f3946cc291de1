"""Who is asked for a recording: nobody waits for a rank that cannot answer."""

import os
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest

from rankpatrol.agent import within
from rankpatrol.agent.within import lines_of, recordings_of
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.system.process import identify

# A rank with a server's socket, and a loader process that has inherited it and outlives its rank.
RANK = """
import os, socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
if os.fork() == 0:
    os.read(0, 1)  # until the test closes our standard input
    os._exit(0)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def rank(tmp_path):
    path = str(tmp_path / "0.sock")
    ours, theirs = os.pipe()
    with subprocess.Popen([sys.executable, "-c", RANK, path], stdin=ours, stdout=subprocess.PIPE) as process:
        os.close(ours)
        assert process.stdout.readline() == b"ready\n"
        seen = identify(process.pid)
        restarts = dict.fromkeys(("torchrun_restarts", "scheduler_restarts"), 0)
        here = {"attempt": 0, "rank": 0, "local_rank": 0, "world_size": 1, "node": "n", "started_unix_s": 0.0}
        shim = {"shim_pid": 1, "shim_start_ticks": 1}
        yield process, RankPlace(pid=seen.pid, start_ticks=seen.start_ticks, probe_socket=path, **here, **shim, **restarts)
        os.close(theirs)
        process.kill()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(within, "_RECORDING_S", 30.0)
    monkeypatch.setattr(within, "_LINES_S", 30.0)


def test_a_rank_that_has_ended_is_not_asked_though_its_loaders_hold_its_socket(rank):
    process, place = rank
    process.kill()
    process.wait()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place.probe_socket)  # the connection is there, and nobody behind it
    began = time.monotonic()
    assert "has ended" in recordings_of([place])[0].reason
    assert lines_of([place]) == {}
    assert time.monotonic() - began < 20


def test_a_zombie_has_ended(rank):
    process, place = rank
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert "has ended" in recordings_of([place])[0].reason


def test_a_stopped_rank_is_not_asked(rank):
    process, place = rank
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert "stands stopped" in recordings_of([place])[0].reason


def test_without_a_probe_nobody_is_asked(rank):
    _, place = rank
    assert "no probe" in recordings_of([msgspec.structs.replace(place, probe_socket=None)])[0].reason
