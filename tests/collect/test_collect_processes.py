import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from collect_subjects import started, wait_for
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.collect.processes import Glances, descendants, process_tree, sample_process
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import IoCounters, OpenFile, ProcessSample, SystemCall
from rankpatrol.system.process import identify

SLEEP = "ready(); time.sleep(600)"


def look(pid: int, *, with_files: bool = False) -> ProcessSample:
    sample = sample_process(pid, with_files=with_files)
    assert isinstance(sample, ProcessSample), sample
    return sample


def blocked_in(pid: int, *calls: str) -> tuple[ProcessSample, SystemCall]:
    def seen() -> tuple[ProcessSample, SystemCall] | None:
        sample = look(pid)
        call = sample.system_call
        return (sample, call) if isinstance(call, SystemCall) and call.name in calls and sample.state != "R" else None

    return wait_for(seen)


def in_state(pid: int, state: str) -> ProcessSample:
    def seen() -> ProcessSample | None:
        sample = look(pid)
        return sample if sample.state == state else None

    return wait_for(seen)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "shard-0042.tar"
    os.mkfifo(path)
    return path


def test_a_process_blocked_in_open_names_the_file_from_its_own_memory(fifo: Path) -> None:
    with started("ready(); open(sys.argv[2])", fifo) as pid:
        sample, call = blocked_in(pid, "openat", "open")
        assert call.path == str(fifo)
        assert sample.state == "S"
        assert isinstance(sample.wait_channel, str)
        assert sample.wait_channel not in {"", "0"}


def test_a_relative_file_name_is_resolved_from_the_working_directory(fifo: Path) -> None:
    with started("ready(); open(sys.argv[2])", fifo.name, cwd=fifo.parent) as pid:
        assert blocked_in(pid, "openat", "open")[1].path == str(fifo)


def test_a_file_name_below_a_directory_descriptor_is_resolved_from_there(fifo: Path) -> None:
    code = "d = os.open(sys.argv[2], os.O_DIRECTORY); ready(); os.open(sys.argv[3], os.O_RDONLY, dir_fd=d)"
    with started(code, fifo.parent, fifo.name) as pid:
        assert blocked_in(pid, "openat")[1].path == str(fifo)


def test_a_process_blocked_in_read_names_the_file_behind_its_descriptor(fifo: Path) -> None:
    with started("fd = os.open(sys.argv[2], os.O_RDWR); ready(); os.read(fd, 1)", fifo) as pid:
        assert blocked_in(pid, "read")[1].path == str(fifo)


def test_a_read_from_a_pipe_has_a_name_but_no_offset() -> None:
    with started("r, w = os.pipe(); ready(); os.read(r, 1)") as pid:
        call = blocked_in(pid, "read")[1]
        assert call.path is not None
        assert call.path.startswith("pipe:[")
        assert call.offset_bytes is None


def test_a_call_on_a_regular_file_tells_how_far_it_had_come(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(5000))
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code = "f = os.open(sys.argv[2], os.O_RDONLY); os.read(f, 1234); ready(); fcntl.flock(f, fcntl.LOCK_EX)"
        with started(code, path) as pid:
            call = blocked_in(pid, "flock")[1]
            assert (call.path, call.offset_bytes) == (str(path), 1234)


def test_a_sleeping_process_is_in_no_file(tmp_path: Path) -> None:
    with started(SLEEP) as pid:
        sample, call = blocked_in(pid, "clock_nanosleep", "nanosleep")
        assert (sample.state, call.path, call.offset_bytes) == ("S", None, None)
        assert len(call.arguments) == 6


def test_a_computing_process_is_running_and_gathers_ticks() -> None:
    with started("ready()\nwhile True: pass") as pid:

        def computed() -> ProcessSample | None:
            sample = look(pid)
            return sample if sample.main_thread_ticks >= 3 and sample.system_call == SystemCall("running") else None

        assert wait_for(computed).state == "R"


def test_the_cpu_of_children_is_counted_once_they_were_waited_for() -> None:
    code = """
import subprocess
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
ready(); time.sleep(600)
"""
    with started(code) as pid:
        sample = look(pid)
    assert sample.children_ticks >= 29


def test_ticks_of_other_threads_are_not_the_main_threads() -> None:
    code = "def burn():\n  while True: pass\nthreading.Thread(target=burn, daemon=True).start(); ready(); threading.Event().wait()"
    with started(code) as pid:
        before = look(pid)

        def burned() -> ProcessSample | None:
            sample = look(pid)
            return sample if sample.cpu_ticks - before.cpu_ticks >= 10 else None

        after = wait_for(burned)
        assert after.main_thread_ticks - before.main_thread_ticks < 5


def test_a_stopped_process_is_in_state_t() -> None:
    with started(SLEEP) as pid:
        os.kill(pid, signal.SIGSTOP)
        assert in_state(pid, "T").id == identify(pid)


def test_a_zombie_still_has_an_identity_but_waits_for_nothing() -> None:
    with started("child = os.fork()\nif child == 0: os._exit(3)\nready(); time.sleep(600)") as pid:
        child = wait_for(lambda: next(iter(descendants(pid)), None))
        sample = in_state(child, "Z")
        assert (sample.id, sample.parent_pid) == (identify(child), pid)
        assert isinstance(sample.system_call, Missing)
        assert isinstance(sample.wait_channel, Missing)
        assert "ended" in sample.system_call.reason


def test_a_process_that_is_gone_is_missing_as_a_whole() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(10)
    assert sample_process(child.pid, with_files=True) == Missing(f"process {child.pid} is gone")


# CLONE_VFORK without CLONE_VM: the parent sleeps in D until its child ends, and shares no memory with it (clone(2)).
IN_D_STATE = """
ready()
if ctypes.CDLL(None).syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x4000 | 17, 0, 0, 0, 0) == 0:
    while True: time.sleep(600)
"""


def test_the_command_line_of_a_process_in_d_state_is_left_alone() -> None:
    with started(IN_D_STATE) as pid:
        sample = in_state(pid, "D")
        assert isinstance(sample.command, Missing)
        assert "D state" in sample.command.reason
        assert isinstance(sample.system_call, SystemCall)
        assert sample.system_call.name == "clone"


def test_another_user_without_capabilities_gets_reasons_instead_of_facts() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os, sys, msgspec\nfrom rankpatrol.collect.processes import sample_process\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "sys.stdout.buffer.write(msgspec.json.encode(sample_process(int(sys.argv[1]), with_files=True)))"
    )
    with started(SLEEP) as pid:
        blocked_in(pid, "clock_nanosleep", "nanosleep")
        said = subprocess.run([sys.executable, "-c", code, str(pid)], stdout=subprocess.PIPE, check=True, timeout=15).stdout
        sample = msgspec.json.decode(said, type=ProcessSample)
        needs = "needs the same user and ptrace access"
        assert sample.system_call == Missing(f"the kernel refuses /proc/{pid}/syscall: {needs}")
        assert sample.io == Missing(f"the kernel refuses /proc/{pid}/io: {needs}")
        assert sample.open_files == Missing(f"the kernel refuses /proc/{pid}/fd: {needs}")
        assert isinstance(sample.wait_channel, Missing)
        assert (sample.state, sample.parent_pid, sample.id) == ("S", os.getpid(), identify(pid))
        assert not isinstance(sample.command, Missing)


def test_open_files_come_with_their_offsets_and_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(5000))
    with started("f = os.open(sys.argv[2], os.O_RDONLY); os.read(f, 4096); ready(); time.sleep(600)", path) as pid:
        files = look(pid, with_files=True).open_files
        assert not isinstance(files, Missing)
        assert [(file.path, file.offset_bytes) for file in files if file.path == str(path)] == [(str(path), 4096)]
        assert all(isinstance(file, OpenFile) for file in files)
        assert look(pid).open_files == Missing("files were not listed in this round")


def test_names_with_blanks_and_brackets_are_read_whole() -> None:
    with started("call_me('a) S 1 (b'); ready(); time.sleep(600)") as pid:
        sample = look(pid)
        assert sample.name == "a) S 1 (b"
        assert sample.parent_pid == os.getpid()
        assert descendants(os.getpid()).count(pid) == 1


def test_each_threads_name_is_listed() -> None:
    code = (
        "def wait():\n  call_me('pt_data_pin'); ready(); time.sleep(600)\n"
        "call_me('pt_data_worker'); threading.Thread(target=wait, daemon=True).start(); time.sleep(600)"
    )
    with started(code) as pid:
        assert sorted(look(pid).thread_names) == ["pt_data_pin", "pt_data_worker"]


def names_at(glances: Glances, pid: int) -> list[str]:
    sample = glances.at(pid)
    assert isinstance(sample, ProcessSample), sample
    return sorted(sample.thread_names)


THREADS = r"""
import ctypes, sys, threading
prctl = ctypes.CDLL(None).prctl
def named(name, until):
    prctl(15, name, 0, 0, 0)  # PR_SET_NAME
    began.set()
    until.wait()
def begin(name):
    global began
    began, until = threading.Event(), threading.Event()
    threading.Thread(target=named, args=(name, until), daemon=True).start()
    began.wait()
    return until.set
prctl(15, b"main", 0, 0, 0)
end = begin(b"gloo_tcp_loop")
for line in sys.stdin:
    if line == "end\n": end()
    if line == "begin\n": end = begin(b"pt_data_worker")
    if line == "rename\n": prctl(15, b"other", 0, 0, 0)
    print("done", flush=True)
"""


def test_glances_know_each_threads_name_also_of_those_that_come_and_go() -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        glances = Glances()

        def say(word: str) -> list[str]:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{word}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            return names_at(glances, child.pid)

        assert say("nothing") == ["gloo_tcp_loop", "main"]
        say("end")
        wait_for(lambda: names_at(glances, child.pid) == ["main"] or None)
        assert say("begin") == ["main", "pt_data_worker"]
        for _ in range(3):
            assert names_at(glances, child.pid) == ["main", "pt_data_worker"]
        say("rename")
        assert [names_at(glances, child.pid) for _ in range(10)][-1] == ["other", "pt_data_worker"]
        assert child.stdin is not None
        child.stdin.close()


def test_a_glance_counts_as_a_whole_look_does_and_leaves_out_the_rest() -> None:
    with started(SLEEP) as pid:
        whole, glance = in_state(pid, "S"), Glances().at(pid)
        assert isinstance(glance, ProcessSample)
        left_out = {name: getattr(glance, name) for name in ("command", "wait_channel", "system_call", "io", "open_files")}
        assert {type(value) for value in left_out.values()} == {Missing}
        assert msgspec.structs.replace(whole, **left_out) == glance
        assert Glances().at(4_194_303) == Missing("process 4194303 is gone")


def test_counters_are_the_kernels_own(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with started("open(sys.argv[2], 'wb', buffering=0).write(bytes(100_000)); ready(); time.sleep(600)", path) as pid:
        sample, _ = blocked_in(pid, "clock_nanosleep", "nanosleep")
        assert isinstance(sample.io, IoCounters)
        assert sample.io.written_chars_bytes >= 100_000
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert sample.voluntary_switches == int(status["voluntary_ctxt_switches"])
        assert sample.involuntary_switches == int(status["nonvoluntary_ctxt_switches"])
        assert sample.tracer_pid == 0
        assert sample.minor_faults > 100
        assert sample.resident_bytes > 1 << 20
        assert not isinstance(sample.command, Missing)
        assert sample.command[1] == "-c"


FAMILY = """
if os.fork() == 0:
    if os.fork() == 0:
        ready()
        time.sleep(600)
    time.sleep(600)
if os.fork() == 0:
    time.sleep(600)
time.sleep(600)
"""


def test_children_of_children_are_found_in_one_shared_pass() -> None:
    with started(FAMILY) as pid:
        family = wait_for(lambda: found if len(found := descendants(pid)) == 3 else None)
        tree = process_tree()
        assert descendants(pid, tree) == family
        assert set(tree[pid]) == set(family[:2])
        assert descendants(family[2], tree) == ()


@given(st.dictionaries(st.integers(1, 12), st.lists(st.integers(1, 12), max_size=4).map(tuple), max_size=12))
def test_a_tree_that_changed_while_it_was_read_names_each_process_once(tree: dict[int, tuple[int, ...]]) -> None:
    found = descendants(1, tree)
    assert len(set(found)) == len(found)
    assert 1 not in found
