"""Stacks in the words of every tool, with whose they are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stack_texts
from rankpatrol.formats.stack_text import looks_like_stacks, parse_stacks
from stack_texts import F, P

TOLD = Path(__file__).parents[1] / "data" / "told"
FRAMES = (F("all_reduce", "torch/distributed/distributed_c10d.py", 2810), F("step", "train.py", 40), F("<module>", "train.py", 9))


@pytest.mark.parametrize("tool", stack_texts.ALL, ids=lambda tool: tool.__name__)
def test_frames_come_out_innermost_first_whoever_printed_them(tool):
    (process,) = parse_stacks(tool([P(3, 4103, FRAMES)])).processes
    (thread,) = [thread for thread in process.threads if thread.frames]
    assert (process.header.rank, process.header.pid) == (3, 4103)
    assert [(frame.name, frame.line) for frame in thread.frames] == [("all_reduce", 2810), ("step", 40), ("<module>", 9)]
    assert thread.frames[0].file.endswith("/site-packages/torch/distributed/distributed_c10d.py")


def test_real_output_of_each_tool_shows_the_same_loader_wait():
    for name in ("pyspy", "pystack_native", "pystack_native-all"):
        (process,) = parse_stacks((TOLD / f"loader_{name}.txt").read_text()).processes
        mains = [thread for thread in process.threads if thread.thread_id == 27116]
        assert "_try_get_data" in mains[0].frames[5].name


def test_gdb_shows_how_long_a_poll_waits():
    (process,) = parse_stacks((TOLD / "loader_gdb.txt").read_text()).processes
    assert [thread.native[0] for thread in process.threads if thread.thread_id == 27116] == ["poll 1 5000"]


def test_subprocesses_stand_below_their_parent():
    parent, *children = parse_stacks((TOLD / "loader_pyspy_subprocesses.txt").read_text()).processes
    assert parent.header.pid == 27116
    assert [child.header.parent_pid for child in children] == [27116, 27116]


def test_native_frames_are_kept_apart():
    (process,) = parse_stacks((TOLD / "loader_process_native.txt").read_text()).processes
    main = process.threads[0]
    assert main.native[0] == "open64"
    assert all(not frame.file.endswith(".so.6") for frame in main.frames)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("Rank 3:", 3),
        ("=== rank 3 (pid 77) ===", 3),
        ("--- RANK 3 / node n1 ---", 3),
        ("==> stacks/rank_3.txt <==", 3),
        ("## rank=3 node=a pid=77", 3),
        ("[rank 3] pid 77", 3),
        ("## local_rank=1 rank=3 pid=77", 3),
    ],
)
def test_observers_mark_ranks_in_many_ways(line, rank):
    body = 'Thread 77 (idle): "MainThread"\n    f (a.py:1)\n    g (b.py:2)\n'
    (process,) = parse_stacks(f"{line}\n{body}").processes
    assert process.header.rank == rank


@pytest.mark.parametrize("line", ["cat /proc/77/stack", "/proc/77/stack:", "$ sudo py-spy dump --pid 77", "$ gdb -p 77 --batch -ex bt"])
def test_the_command_that_took_a_stack_names_its_process(line):
    (process,) = parse_stacks(f"{line}\n[<0>] futex_wait+0x1/0x2\n[<0>] do_futex+0x1/0x2\n").processes
    assert process.header.pid == 77


def test_local_variables_are_no_frames():
    text = 'Thread 77 (idle): "MainThread"\n    f (a.py:1)\n        Arguments:\n            x: fn (b.py:2)\n    g (b.py:2)\n'
    assert [frame.name for frame in parse_stacks(text).processes[0].threads[0].frames] == ["f", "g"]


def test_a_long_log_is_not_read_whole():
    log = ("step 10 loss 2.1 File x Thread y\n" * 200_000) + '  File "a.py", line 1, in f\n'
    assert not looks_like_stacks(log)


RAISED = """[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/home/u/train.py", line 97, in train
[rank{0}]:     for inputs in loader:
[rank{0}]:   File "/home/u/train.py", line 37, in __getitem__
[rank{0}]:     rows = torch.frombuffer(data)
[rank{0}]: {1}
"""


def test_ranks_that_all_raised_make_a_log_and_one_that_was_interrupted_shows_where_it_stood():
    raised = RAISED.format(0, "ValueError: buffer length") + RAISED.format(1, "RuntimeError: Connection closed by peer")
    assert not looks_like_stacks(raised)
    assert not looks_like_stacks(raised + "step 17/60 loss 0.014\n" * 4)
    assert looks_like_stacks(raised + RAISED.format(2, "KeyboardInterrupt"))


def test_a_measurement_is_no_header():
    text = 'Thread 77 (idle): "MainThread"\n    f (a.py:1)\n    g (b.py:2)\n## cpu rank=0 utime_delta_10s=0.2\n'
    parsed = parse_stacks(text)
    assert [process.header.rank for process in parsed.processes] == [None]
    assert "## cpu rank=0 utime_delta_10s=0.2" in parsed.context


def test_a_state_told_later_finds_its_process():
    text = stack_texts.pyspy([P(0, 70, FRAMES), P(1, 71, FRAMES)]) + "/proc/70/stat: D  wchan: nfs_wait_bit_killable\n"
    first, second = parse_stacks(text).processes
    assert (first.state, first.wait_channel) == ("D", "nfs_wait_bit_killable")
    assert (second.state, second.wait_channel) == (None, None)


def test_lldb_and_eu_stack_are_read():
    lldb = "thread #1, name = 'python'\n    frame #0: 0x00007f libc.so.6`poll + 29\n    frame #1: 0x00007f libnccl.so.2`ncclGroupEnd + 3\n"
    assert parse_stacks(lldb).processes[0].threads[0].native == ("poll", "ncclGroupEnd")
    eu_stack = "PID 70 - process\nTID 70:\n#0  0x00007f1 poll\n#1  0x00007f2 c10d::TCPStore::wait\n"
    assert parse_stacks(eu_stack).processes[0].threads[0].native == ("poll", "c10d::TCPStore::wait")


@pytest.mark.parametrize("text", ["", "hello", "step 1 loss 2.0\n" * 20, '{"a": 1}', "[]", "[1, 2]\n", "Thread safety matters\n"])
def test_other_texts_are_no_stacks(text):
    assert not looks_like_stacks(text)


@given(st.text(max_size=300))
def test_nothing_raises(text):
    parse_stacks(text)
    parse_stacks(f'[{{"pid": 1, "frames": [{{"name": "f"}}]}}]\n{text}')
