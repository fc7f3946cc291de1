"""`rankpatrol lemons` for people and for programs."""

import json
import time

import pytest

from rankpatrol.cli.main import call
from rankpatrol.lemons.memory import LemonMemory
from rankpatrol.lemons.records import Memory, NodeIncident, NodeUse


@pytest.fixture
def memory(tmp_path, monkeypatch):
    path = tmp_path / "lemons.sqlite3"
    monkeypatch.setenv("RANKPATROL_LEMONS", str(path))
    return LemonMemory(path)


@pytest.fixture
def lemon(memory):
    now = time.time()
    said = {"verdict": "crash", "cause": "gpu_lost", "sentence": "it fell off", "device": "local rank 1"}
    incidents = tuple(NodeIncident(job="j", incident=number, at_unix_s=now - 60, node="n1", **said) for number in (1, 2))
    memory.add(Memory(incidents=incidents, uses=tuple(NodeUse(job="j", node=node, at_unix_s=now - 90) for node in ("n0", "n1"))))
    return memory


def test_no_memory_yet_is_no_lemon(memory, capsys):
    assert call(["lemons"]) == 0
    assert "No node had an incident" in capsys.readouterr().out


def test_it_says_what_to_leave_out_and_how(lemon, capsys):
    assert call(["lemons"]) == 1
    out = capsys.readouterr().out
    assert "n1: leave it out: 2 incidents of its hardware, 2.00 a job; other nodes 0.00" in out
    assert "--exclude=n1" in out
    assert "kubernetes.io/hostname" in out


def test_a_node_with_many_words_stays_on_one_line_where_no_terminal_sets_a_width(memory, capsys):
    node, now = "a-node-with-a-very-long-name.rack-17.row-b.example.org", time.time()
    said = {"verdict": "crash", "cause": "gpu_lost", "sentence": "it fell off", "device": "GPU-0d1e2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6"}
    memory.add(Memory(incidents=(NodeIncident(job="j", incident=1, at_unix_s=now, node=node, **said),), uses=()))
    call(["lemons"])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "gpu_lost" in line]
    assert row.startswith(node)
    assert row.rstrip().endswith("e5f6 (1)")


def test_the_document_is_the_only_thing_on_stdout(lemon, capsys):
    assert call(["lemons", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["lemons"], found["advice"]["slurm"]) == (["n1"], "--exclude=n1")


def test_forgetting_wants_a_yes(lemon, capsys):
    assert call(["lemons", "--forget", "n1"]) == 64
    assert call(["lemons", "--forget", "n1", "--yes"]) == 0
    assert "2 incidents of n1 forgotten" in capsys.readouterr().out
    assert call(["lemons"]) == 0


def test_a_damaged_memory_is_said(memory, capsys):
    memory.path.write_bytes(b"garbage" * 99)
    assert call(["lemons"]) == 3
    assert "cannot be read: file is not a database" in capsys.readouterr().err


def test_no_memory_wanted_is_said(monkeypatch, capsys):
    monkeypatch.setenv("RANKPATROL_LEMONS", "")
    assert call(["lemons"]) == 64
