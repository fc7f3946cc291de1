import os
import signal
import subprocess
import sys

import msgspec
from collect_subjects import started, wait_for

from rankpatrol.collect.processes import descendants, process_tree
from rankpatrol.collect.ranks import RankRecord, observe, with_stacks
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import ProcessSample, RankSample, Stack
from rankpatrol.system.process import identify

# A rank with two loader processes; the second has a helper that is no Python.
LOADERS = """
import multiprocessing, subprocess
def load(last):
    call_me("pt_data_worker")
    if last:
        subprocess.Popen(["sleep", "600"])
        ready()
    time.sleep(600)
fork = multiprocessing.get_context("fork")
for last in (False, True):
    fork.Process(target=load, args=(last,)).start()
time.sleep(600)
"""

# A shim: it adopts what its rank leaves behind (PR_SET_CHILD_SUBREAPER is 36).
SHIM = """
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    if os.fork() == 0:
        ready()
        time.sleep(600)
    time.sleep(600)
time.sleep(600)
"""


def record_of(pid: int, *, shim_pid: int = 0) -> RankRecord:
    process = identify(pid)
    assert process is not None
    return RankRecord(rank=2, local_rank=2, node="node-a", shim_pid=shim_pid, process=process, log_path="/nowhere/rank2.log")


def children_of(pid: int, count: int) -> tuple[int, ...]:
    return wait_for(lambda: found if len(found := descendants(pid)) == count else None)


def observe_now(record: RankRecord, *, full: bool = False) -> RankSample:
    return observe(record, process_tree(), full=full)


def test_a_rank_is_seen_with_all_its_descendants() -> None:
    with started(LOADERS) as pid:
        family = children_of(pid, 3)
        sample = observe_now(record_of(pid), full=True)
        assert (sample.rank, sample.local_rank, sample.node, sample.pid) == (2, 2, "node-a", pid)
        assert isinstance(sample.process, ProcessSample)
        assert sorted(child.id.pid for child in sample.descendants) == sorted(family)
        wait_for(lambda: [c.name for c in observe_now(record_of(pid)).descendants].count("pt_data_worker") == 2 or None)
        assert not any(isinstance(child.open_files, Missing) for child in sample.descendants)


def test_stacks_are_taken_of_the_rank_and_of_each_child() -> None:
    with started(LOADERS) as pid:
        children_of(pid, 3)
        sample = with_stacks(observe_now(record_of(pid)), 15.0)
        assert isinstance(sample.stack, Stack)
        assert sample.stack.pid == pid
        main = sample.stack.main_thread()
        assert main is not None
        assert main.frames[-1].name == "<module>"
        assert set(sample.child_stacks) == {child.id.pid for child in sample.descendants}
        loaders = [stack for stack in sample.child_stacks.values() if isinstance(stack, Stack)]
        assert len(loaders) == 2
        assert all(any(frame.name == "load" for frame in loader.threads[0].frames) for loader in loaders)
        others = [stack.reason for stack in sample.child_stacks.values() if isinstance(stack, Missing)]
        assert len(others) == 1
        assert others[0].endswith("runs no Python")


def test_a_rank_that_ended_is_missing_with_how_it_ended() -> None:
    ended = msgspec.structs.replace(record_of(os.getpid()), exit_status=1)
    sample = observe_now(ended)
    assert sample.process == Missing("rank 2 ended with exit status 1")
    assert with_stacks(sample, 1.0).stack == sample.process
    assert sample.exit_status == 1
    killed = msgspec.structs.replace(ended, exit_status=-9)
    assert observe_now(killed).process == Missing("rank 2 was ended by SIGKILL")


def test_a_reused_pid_is_neither_the_rank_nor_the_parent_of_its_children() -> None:
    with started(LOADERS) as pid:
        children_of(pid, 3)
        record = record_of(pid)
        before = ProcessId(record.process.boot_id, pid, record.process.start_ticks - 1)
        sample = observe_now(msgspec.structs.replace(record, process=before))
        assert sample.process == Missing(f"rank 2 is gone: pid {pid} belongs to another process now")
        assert sample.descendants == ()


def test_a_rank_that_is_gone_is_missing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = record_of(child.pid)
    child.communicate(b"\n", timeout=10)
    assert observe_now(record).process == Missing(f"process {child.pid} is gone")


def test_what_a_dead_rank_leaves_to_its_shim_is_still_seen() -> None:
    with started(SHIM) as shim:
        rank, loader = children_of(shim, 2)
        record = record_of(rank, shim_pid=shim)
        assert [child.id.pid for child in observe_now(record).descendants] == [loader]
        os.kill(rank, signal.SIGKILL)
        wait_for(lambda: loader in process_tree().get(shim, ()) or None)
        sample = observe_now(msgspec.structs.replace(record, exit_status=-9))
        assert [child.id.pid for child in sample.descendants] == [loader]
        assert isinstance(with_stacks(sample, 10.0).child_stacks[loader], Stack)


def test_a_reused_shim_pid_lends_no_children() -> None:
    with started(SHIM) as stranger:
        children_of(stranger, 2)
        record = record_of(os.getpid(), shim_pid=stranger)
        ended = msgspec.structs.replace(record, exit_status=0)
        assert stranger in {child.id.pid for child in observe_now(record).descendants}
        elsewhere = msgspec.structs.replace(ended, process=msgspec.structs.replace(record.process, pid=4_194_303))
        assert observe_now(elsewhere).descendants == ()
