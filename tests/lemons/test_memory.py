"""The memory's file, with other agents at it, locked, damaged, of another version, or not to be written at all."""

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rankpatrol.agent.lemon_watch import LemonWatch
from rankpatrol.agent.roster import Attempt
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.incident.records import IncidentState, Stage
from rankpatrol.launch.rundir import JobSpec, RankPlace
from rankpatrol.lemons import memory as lemon_memory
from rankpatrol.lemons.memory import LemonMemory, LemonProblem, lemon_path
from rankpatrol.lemons.records import Memory, NodeIncident, NodeUse


def incident(number=1, node="n1"):
    return NodeIncident(
        job="j", incident=number, at_unix_s=1.8e9, node=node, device="local rank 0", verdict="crash", cause="gpu_lost", sentence="ä \udcff"
    )


@pytest.fixture
def memory(tmp_path):
    return LemonMemory(tmp_path / "state" / "lemons.sqlite3")


def test_what_was_added_is_read_once_however_often_it_was_told(memory):
    assert memory.read() == Memory()
    for _ in range(2):
        memory.add(Memory(incidents=(incident(1), incident(2)), uses=(NodeUse(job="j", node="n1", at_unix_s=1.8e9),)))
    found = memory.read()
    assert ([each.incident for each in found.incidents], len(found.uses)) == ([1, 2], 1)
    assert found.incidents[0].sentence == "ä ?"


def test_a_mended_nodes_incidents_are_forgotten(memory):
    assert memory.forget("n1") == 0
    memory.add(Memory(incidents=(incident(1), incident(2), incident(3, node="n2"))))
    assert memory.forget("n1") == 2
    assert [each.node for each in memory.read().incidents] == ["n2"]


def test_after_a_year_and_a_month_it_is_forgotten(memory):
    memory.add(Memory(incidents=(incident(1),)))
    memory.add(Memory(uses=(NodeUse(job="k", node="n1", at_unix_s=1.8e9 + 401 * 86400),)))
    assert memory.read().incidents == ()


def test_agents_write_side_by_side(memory):
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from rankpatrol.lemons.memory import LemonMemory
        from rankpatrol.lemons.records import Memory, NodeUse
        for number in range(10):
            LemonMemory(Path(sys.argv[1])).add(Memory(uses=(NodeUse(job=f"{sys.argv[2]}.{number}", node="n", at_unix_s=1.8e9),)))
    """)
    agents = [subprocess.Popen([sys.executable, "-c", code, str(memory.path), str(number)]) for number in range(3)]
    assert [agent.wait(18) for agent in agents] == [0, 0, 0]
    assert len(memory.read().uses) == 30


def spoil(path, how):
    path.parent.mkdir(exist_ok=True)
    match how:
        case "garbage":
            path.write_bytes(b"\x00 no database " * 100)
        case "a folder":
            path.mkdir()
        case "other tables":
            with sqlite3.connect(path) as other:
                other.execute("CREATE TABLE incidents (a)")
                other.execute("CREATE TABLE uses (a)")
            other.close()
        case "later version":
            with sqlite3.connect(path) as other:
                other.execute("PRAGMA user_version = 9")
            other.close()
        case "no folder":
            path.parent.rmdir()
            path.parent.write_text("a file")


@pytest.mark.parametrize("how", ["garbage", "a folder", "other tables", "later version", "no folder"])
def test_a_file_that_is_not_ours_is_said_and_left_alone(memory, how):
    spoil(memory.path, how)
    before = memory.path.read_bytes() if memory.path.is_file() else None
    with pytest.raises(LemonProblem, match="the memory of nodes"):
        memory.add(Memory(incidents=(incident(),)))
    if how != "no folder":
        with pytest.raises(LemonProblem):
            memory.read()
    assert before is None or memory.path.read_bytes() == before


def test_rows_that_others_wrote_are_no_traceback(memory):
    memory.add(Memory(incidents=(incident(),)))
    with sqlite3.connect(memory.path) as other:
        other.execute("UPDATE incidents SET at_unix_s = 'yesterday'")
    other.close()
    with pytest.raises(LemonProblem, match="cannot be read"):
        memory.read()


def test_a_locked_file_is_given_up_soon(memory, monkeypatch):
    monkeypatch.setattr(lemon_memory, "WAIT_S", 0.1)
    memory.add(Memory(incidents=(incident(),)))
    holder = sqlite3.connect(memory.path)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LemonProblem, match="locked"):
        memory.add(Memory(incidents=(incident(2),)))
    with pytest.raises(LemonProblem, match="locked"):
        memory.read()
    holder.close()


def test_a_python_without_sqlite_has_no_memory_and_no_trouble(memory, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    with pytest.raises(LemonProblem, match="has no sqlite3"):
        memory.add(Memory(incidents=(incident(),)))


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("RANKPATROL_LEMONS", str(tmp_path / "x"))
    assert lemon_path() == tmp_path / "x"
    monkeypatch.setenv("RANKPATROL_LEMONS", "")
    assert lemon_path() is None
    monkeypatch.delenv("RANKPATROL_LEMONS")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert lemon_path() == Path("/state/rankpatrol/lemons.sqlite3")
    monkeypatch.setenv("XDG_STATE_HOME", "no/absolute/path")
    monkeypatch.setenv("HOME", "/home/u")
    assert lemon_path() == Path("/home/u/.local/state/rankpatrol/lemons.sqlite3")


SPEC = JobSpec(job="job", job_dir="/runs/job", command=("train",), policy="recover", patience_s=180, checkpoints=None, started_unix_s=1.8e9)


def place(rank, node):
    return RankPlace(
        attempt=0,
        rank=rank,
        local_rank=rank % 2,
        world_size=4,
        node=node,
        shim_pid=1,
        shim_start_ticks=1,
        pid=2,
        start_ticks=2,
        torchrun_restarts=0,
        scheduler_restarts=0,
        started_unix_s=1.8e9,
    )


ATTEMPT = Attempt(number=0, places=(place(0, "n0"), place(1, "n0"), place(2, "n1"), place(3, "n1")), exits={}, gone=frozenset())


def judged(*culprits):
    found = Diagnosis(verdict="crash", cause="gpu_lost", culprit_ranks=culprits or None, certainty=Certainty.PROVED, sentence="it fell off")
    return IncidentState(incident=1, attempt=0, stage=Stage.JUDGED, onset_unix_s=1.8e9, diagnosis=found)


def test_an_agent_remembers_the_nodes_of_its_job_and_of_its_culprits(memory):
    watch = LemonWatch(SPEC, memory.path, pytest.fail)
    watch.began(ATTEMPT)
    watch.judged(judged(3), ATTEMPT)
    watch.judged(judged(), ATTEMPT)
    assert watch._courier.delivered(10)
    found = memory.read()
    assert {use.node for use in found.uses} == {"n0", "n1"}
    assert [(each.node, each.device, each.cause) for each in found.incidents] == [("n1", "local rank 1", "gpu_lost")]


def test_a_memory_that_cannot_be_written_is_said_once_and_disturbs_nobody(memory):
    spoil(memory.path, "garbage")
    said = []
    watch = LemonWatch(SPEC, memory.path, said.append)
    for _ in range(3):
        watch.judged(judged(3), ATTEMPT)
    assert watch._courier.delivered(10)
    assert len(said) == 1
    assert "the job goes on without it" in said[0]


def test_without_a_memory_nothing_is_done():
    watch = LemonWatch(SPEC, None, pytest.fail)
    watch.began(ATTEMPT)
    watch.judged(judged(3), ATTEMPT)
