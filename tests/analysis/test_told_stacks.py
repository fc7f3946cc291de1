"""Who is named from pasted stacks, in whatever tool's words, and who never is."""

import pytest
import told_scenes as scenes
from hypothesis import given, settings
from hypothesis import strategies as st

import stack_texts
from rankpatrol.analysis.told.stacks import diagnose_stacks
from stack_texts import F, P


def answer(text):
    found = diagnose_stacks(text)
    named = found.awaited_ranks if found.verdict == "benign_wait" else found.culprit_ranks
    return found.verdict, found.cause, named


def told(processes, tool=stack_texts.pyspy, after=""):
    return answer(tool(processes) + after)


LOADER = "data_loader_worker_stuck"
FORK = "data_loader_fork_lock"
# Each is the mechanism of a public thread: what is stuck, where the others wait, and what that allows to say.
SCENES = {
    "a loader process reads a mount that does not answer": (scenes.loader_reads_slow_mount(), ("hang", LOADER, (2,))),
    "the rank waits for its loader, whose processes nobody dumped": (scenes.ranks(4, 3, scenes.DATA), ("hang", LOADER, (3,))),
    "a loader process wants a logging lock it inherited": (scenes.loader_after_fork(frames=scenes.LOGGING_LOCK), ("hang", FORK, (1,))),
    "fairseq's own queue of batches": (scenes.ranks(4, 0, scenes.QUEUE_OF_FAIRSEQ), ("hang", LOADER, (0,))),
    "one rank writes a checkpoint": (scenes.ranks(4, 0, scenes.SAVES, scenes.BARRIER), ("benign_wait", "checkpoint_io_slow", (0,))),
    "one rank evaluates": (scenes.ranks(4, 0, scenes.EVALUATES, scenes.BARRIER), ("benign_wait", "rank0_eval", (0,))),
    "one rank prepares the data under a guard": (
        scenes.ranks(4, 0, scenes.TOKENIZES, scenes.FIRST),
        ("benign_wait", "rank0_preprocessing", (0,)),
    ),
    "one rank compiles": (scenes.ranks(4, 2, scenes.COMPILES), ("benign_wait", "compile_or_jit", (2,))),
    "one rank downloads weights": (scenes.ranks(4, 0, scenes.DOWNLOADS, scenes.FIRST), ("hang", "download_stall", (0,))),
    "one rank waits for a lock file": (scenes.ranks(4, 3, scenes.LOCKED_FILE), ("hang", "unknown", (3,))),
    "one rank saves on a value of its own": (
        scenes.ranks(4, 1, scenes.SAVES_BEST, scenes.FORWARD),
        ("hang", "rank_conditional_collective", (1,)),
    ),
    "one rank stands in a barrier that no other reached": (
        scenes.ranks(4, 2, scenes.BARRIER),
        ("hang", "rank_conditional_collective", (2,)),
    ),
    "a pipeline stage asks a service": (scenes.ranks(4, 1, scenes.LOCKED_FILE, scenes.RECV), ("hang", "p2p_mismatch", (1,))),
    "everybody receives": (scenes.ranks(4, 0, scenes.RECV, scenes.RECV), ("hang", "p2p_mismatch", None)),
    "everybody is at the end": (scenes.ranks(4, 0, scenes.DESTROYS, scenes.DESTROYS), ("zombie_job", "teardown_deadlock", None)),
    "all ranks compile": (scenes.ranks(4, 0, scenes.COMPILES, scenes.COMPILES), ("benign_wait", "compile_or_jit", None)),
    "all ranks stand in one all_reduce, once seen": (scenes.ranks(4, 0, scenes.ALL_REDUCE), ("undetermined", "unknown", None)),
    "some wait for the GPU, some in a collective": (scenes.ranks(4, 0, scenes.SYNCS), ("undetermined", "unknown", None)),
    "some in backward, some in a collective": (scenes.ranks(4, 0, scenes.BACKWARD), ("undetermined", "unknown", None)),
}


@pytest.mark.parametrize("tool", stack_texts.ALL, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("scene", SCENES)
def test_every_tools_words_give_the_same_answer(scene, tool):
    processes, expected = SCENES[scene]
    assert told(processes, tool) == expected


@pytest.mark.parametrize("tool", stack_texts.WITH_NATIVE, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("native", [scenes.OPENCV, scenes.OPENMP, scenes.RAYON])
def test_a_lock_inherited_by_fork_is_seen_in_c_functions(native, tool):
    assert told(scenes.loader_after_fork(native=native), tool) == ("hang", FORK, (1,))


@pytest.mark.parametrize("tool", stack_texts.WITH_NATIVE, ids=lambda tool: tool.__name__)
def test_a_rank_that_opens_a_file_waits_for_its_storage(tool):
    processes = scenes.ranks(4, 0, scenes.SAVES, scenes.BARRIER, native=("open64", "_io_FileIO___init__"))
    assert told(processes, tool) == ("hang", "filesystem_stall", (0,))


@pytest.mark.parametrize("tool", stack_texts.WITH_NATIVE, ids=lambda tool: tool.__name__)
def test_c_functions_speak_where_python_is_silent(tool):
    waits = ("__futex_abstimed_wait_common64", "pthread_cond_wait", "std::condition_variable::wait", "c10d::Work::wait")
    aborts = ("__futex_abstimed_wait", "pthread_join", "commFree", "ncclCommAbort", "c10d::ProcessGroupNCCL::abort")
    users = (F("main", "train.py", 9), scenes.MAIN)
    peers = [P(rank, 100 + rank, users, waits) for rank in range(3)]
    assert told([*peers, P(3, 103, (F("prepare", "train.py", 5), *users), ("clock_nanosleep",))], tool)[2] == (3,)
    assert told([P(rank, 100 + rank, users, aborts) for rank in range(4)], tool) == ("zombie_job", "teardown_deadlock", None)


@given(order=st.permutations(range(4)), odd=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_the_culprit_does_not_depend_on_its_number_nor_on_the_order_of_the_text(order, odd):
    processes = scenes.loader_reads_slow_mount(odd)
    by_rank = {rank: [each for each in processes if each.rank == rank] for rank in range(4)}
    assert told([each for rank in order for each in by_rank[rank]]) == ("hang", LOADER, (odd,))


@pytest.mark.parametrize("world", [2, 512])
def test_two_ranks_and_five_hundred_get_the_same_answer(world):
    assert told(scenes.loader_reads_slow_mount(world - 1, world)) == ("hang", LOADER, (world - 1,))


def test_lines_that_a_launcher_mixed_are_put_in_order_again():
    assert told(scenes.ranks(4, 3, scenes.DATA), stack_texts.prefixed) == ("hang", LOADER, (3,))


def test_a_text_without_rank_numbers_names_a_process_and_no_rank():
    text = stack_texts.pyspy(scenes.ranks(4, 3, scenes.DATA)).replace("## rank=", "-- x")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("-- x"))
    found = diagnose_stacks(text)
    assert (found.cause, found.culprit_ranks) == (LOADER, None)
    assert "process 4103" in found.sentence
    assert "rank 3" not in str(found)


def test_the_one_process_of_a_dump_gets_no_rank_and_a_next_step():
    head = "Process 4242: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
    alone = head + 'Thread 4242 (idle): "MainThread"\n    fetch (data.py:20)\n    main (train.py:31)\n'
    found = diagnose_stacks(alone)
    assert found.sentence == "one process is shown, and it waits for no other: process 4242: stands in fetch (data.py:20)"
    assert "rank 0" not in str(found)
    assert "stacks of all ranks" in found.suggested[0]


def test_processes_without_a_number_are_counted_as_processes():
    text = "\n".join(f'Thread 0x7f0{at} (most recent call first):\n  File "/a/train.py", line {at}, in main\n' for at in range(1, 3))
    found = diagnose_stacks(text)
    assert found is None or not any(word in str(found) for word in ("rank 0", "rank 1", "ranks 0"))


def test_the_old_launchers_argument_is_a_rank():
    text = "\n\n".join(
        f'Process {70 + rank}: python train.py --local_rank={rank}\n\nThread {70 + rank} (idle): "MainThread"\n'
        + "\n".join(f"    {frame.name} ({frame.file}:{frame.line})" for frame in (scenes.DATA if rank == 1 else scenes.ALL_REDUCE))
        for rank in range(3)
    )
    assert answer(text) == ("hang", LOADER, (1,))


def test_a_rank_that_nobody_could_dump_is_not_blamed():
    text = (
        stack_texts.pyspy(scenes.ranks(4, 0, scenes.ALL_REDUCE))
        + "\n## rank=4 node=n1 pid=4104\nError: Failed to suspend process: timed out\n"
    )
    assert diagnose_stacks(text).culprit_ranks is None


def test_a_rank_that_computes_is_not_blamed_from_one_look():
    processes = scenes.ranks(4, 2, (F("forward", "model.py", 80), *scenes.STEP), idle=False)
    assert told(processes) == ("undetermined", "unknown", None)


def test_other_frames_in_a_second_look_are_work():
    first = [P(0, 60, (F("forward", "model.py", 5), F("predict", "evals/suite.py", 140), *scenes.STEP[1:]))]
    second = [P(0, 60, (F("loss", "metrics.py", 31), F("score", "evals/suite.py", 166), *scenes.STEP[1:]))]
    waiting = [P(rank, 60 + rank, scenes.BARRIER) for rank in range(1, 4)]
    found = diagnose_stacks("# sample 1\n" + stack_texts.pyspy(first) + "# sample 2\n" + stack_texts.pyspy([*second, *waiting]))
    assert (found.verdict, found.cause, found.awaited_ranks) == ("benign_wait", "rank0_eval", (0,))


def test_other_lines_of_one_function_are_neither_work_nor_a_standstill():
    waiting = stack_texts.pyspy([P(rank, 60 + rank, scenes.ALL_REDUCE) for rank in range(1, 4)])
    looks = [stack_texts.pyspy([P(0, 60, (F("__iter__", "sampler.py", line), *scenes.STEP), idle=False)]) for line in (33, 34)]
    assert answer(waiting + "".join(looks)) == ("undetermined", "unknown", None)
    assert answer(waiting + looks[0] + looks[0]) == ("hang", "unknown", (0,))


def test_one_place_that_does_not_move_is_started_everywhere():
    assert told(scenes.ranks(4, 0, scenes.ALL_REDUCE), after="-- 2 h without a step --\n") == (
        "hang",
        "collective_started_everywhere",
        None,
    )


def test_polling_for_a_file_waits_for_whoever_makes_it():
    polls = (F("sleep", "time"), F("wait_for_path", "paths.py", 31), F("main", "train.py", 70), scenes.MAIN)
    reads = (F("load", "packer.py", 88), F("main", "train.py", 66), scenes.MAIN)
    processes = scenes.ranks(4, 2, reads, polls)
    assert told(processes, after="/proc/4102/stat: D  wchan: rpc_wait_bit_killable\n") == ("hang", "filesystem_stall", (2,))


@pytest.mark.parametrize(
    "channel", ["cl_sync_io_wait", "request_wait_answer", "folio_wait_bit_common", "ceph_mdsc_wait_request", "nfs_wait_on_request"]
)
def test_the_kernels_stack_names_the_storage(channel):
    kernel = f"\n## rank=4 pid=4104\n[<0>] {channel}+0x8d/0xb0\n[<0>] vfs_read+0x2a/0x60\n"
    assert answer(stack_texts.pyspy(scenes.ranks(4, 0, scenes.BARRIER, scenes.BARRIER)) + kernel) == ("hang", "filesystem_stall", (4,))


def test_a_thread_that_keeps_the_interpreter_is_named():
    text = stack_texts.pyspy(scenes.ranks(3, 0, scenes.ALL_REDUCE)) + (
        '\n## rank=3 pid=4103\nThread 1 (Thread 0x7f2a (LWP 4103) "python"):\n#0  0x00007f in sre_ucs1_match () from libpython3.11.so\n'
        "#1  0x00007f in pattern_subx () from libpython3.11.so\n\n"
        'Thread 2 (Thread 0x7f2b (LWP 4190) "pt_nccl_watchdg"):\n#0  0x00007f in pthread_cond_timedwait () from libc.so.6\n'
        "#1  0x00007f in take_gil () from libpython3.11.so\n"
    )
    assert answer(text) == ("hang", "gil_held", (3,))


def test_a_collective_in_a_hook_of_backward_is_seen_in_autograds_own_thread():
    hook = (
        "Thread 4079 (active)\n    all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)\n"
        "    fetch_sub_module (deepspeed/runtime/zero/parameter_offload.py:300)\n"
    )
    peers = "".join(stack_texts.pyspy([P(rank, 100 + rank, scenes.BACKWARD)]) + hook for rank in range(3))
    text = peers + "\n" + stack_texts.pyspy([P(3, 103, scenes.LOCKED_FILE)])
    found = diagnose_stacks(text)
    assert (found.cause, found.culprit_ranks) == ("unknown", (3,))
    assert "all_gather_into_tensor" in found.sentence


def test_a_hook_of_the_users_own_is_not_backward():
    hook = "Thread 4079 (idle)\n    sleep (time)\n    my_hook (train.py:9)\n"
    text = (
        stack_texts.pyspy([P(0, 100, scenes.BACKWARD)])
        + hook
        + stack_texts.pyspy([P(rank, 100 + rank, scenes.BACKWARD) for rank in (1, 2)])
    )
    assert diagnose_stacks(text).culprit_ranks == (0,)


def test_an_idle_loader_process_alone_says_nothing():
    assert told([scenes.child(0, scenes.IDLE_WORKER)])[0] == "undetermined"


def test_a_rank_alone_in_a_collective_says_nothing_of_its_peers():
    assert told([P(5, 4105, scenes.ALL_REDUCE)]) == ("undetermined", "unknown", None)


def test_a_fatal_error_is_a_crash():
    text = "## rank=9 pid=77\nFatal Python error: Segmentation fault\n\n" + "\n".join(
        stack_texts.faulthandler([P(9, 77, scenes.ALL_REDUCE)]).splitlines()[1:]
    )
    assert answer(text) == ("crash", "sigsegv", (9,))


def test_a_rank_that_raised_is_awaited_in_vain():
    waiting = [P(rank, 100 + rank, scenes.ALL_REDUCE) for rank in (0, 1)]
    error = stack_texts.traceback([P(2, 102, scenes.STEP)]).replace("Stack (", "Traceback (") + "ValueError: no such sample\n"
    assert answer(stack_texts.pyspy(waiting) + error) == ("hang", "rank_exception_peers_wait", (2,))


def test_ranks_that_were_interrupted_show_where_they_stood():
    stopped = [
        stack_texts.traceback([each]).replace("Stack (", "Traceback (") + "KeyboardInterrupt\n" for each in scenes.ranks(3, 1, scenes.DATA)
    ]
    assert answer("".join(stopped)) == ("hang", LOADER, (1,))


WAITING = {"all_reduce": scenes.ALL_REDUCE, "backward": scenes.BACKWARD, "sync": scenes.SYNCS}
ELSEWHERE = {
    "data": scenes.DATA,
    "lock": scenes.LOCKED_FILE,
    "saves": scenes.SAVES,
    "evaluates": scenes.EVALUATES,
    "compiles": scenes.COMPILES,
}


@given(places=st.lists(st.sampled_from([*WAITING, *ELSEWHERE]), min_size=2, max_size=8), tool=st.sampled_from(stack_texts.ALL))
@settings(max_examples=150, deadline=None)
def test_whoever_waits_for_peers_is_never_accused_while_another_is_elsewhere(places, tool):
    frames = {**WAITING, **ELSEWHERE}
    found = diagnose_stacks(tool([P(rank, 100 + rank, frames[place]) for rank, place in enumerate(places)]))
    elsewhere = {rank for rank, place in enumerate(places) if place in ELSEWHERE}
    accused = set(found.culprit_ranks or ()) | set(found.awaited_ranks or ())
    assert accused <= elsewhere or not elsewhere


def test_an_abort_blames_nobody():
    text = "## rank=9 pid=77\nFatal Python error: Aborted\n\n" + stack_texts.faulthandler([P(9, 77, scenes.ALL_REDUCE)]).split("\n", 1)[1]
    assert answer(text) == ("crash", "sigabrt", None)


def test_a_handle_that_is_waited_for_in_c_is_no_guilt():
    waits = (F("sync_gradients", "train.py", 33), *scenes.STEP)
    assert told(scenes.ranks(4, 2, waits, idle=True))[2] is None


def test_a_long_phase_has_no_steps_and_is_no_stall():
    processes = scenes.ranks(4, 0, scenes.EVALUATES, scenes.BARRIER)
    assert told(processes, after="-- 40 min without a step --\n") == ("benign_wait", "rank0_eval", (0,))
    assert told(processes, after="-- 40 min later: identical stacks --\n") == ("hang", "unknown", (0,))


def test_counts_that_grow_are_work_and_a_count_of_attempts_is_not():
    processes = scenes.ranks(4, 0, scenes.LOCKED_FILE, scenes.BARRIER)
    assert told(processes, after="files written: 120 -> 164\n")[0] == "benign_wait"
    assert told(processes, after="attempt: 1 -> 2\n") == ("hang", "unknown", (0,))


def test_ranks_that_are_left_out_are_a_doubt():
    found = diagnose_stacks(stack_texts.pyspy([P(0, 70, scenes.ALL_REDUCE), P(6, 76, scenes.DATA)]))
    assert found.culprit_ranks == (6,)
    assert "stacks of 2 of at least 7 ranks are shown" in found.reasons_against


def test_a_traceback_at_the_end_of_a_log_is_no_stack():
    log = "step 10 loss 2.1\nTraceback (most recent call last):\n" + '  File "/home/u/train.py", line 3, in main\n    x()\nValueError: no\n'
    assert diagnose_stacks(log) is None


def cut(text, share):
    """The text up to somewhere within a line."""
    return text[: int(len(text) * share)].rstrip("\n")


@given(share=st.floats(0.0, 1.0), tool=st.sampled_from(stack_texts.ALL))
@settings(max_examples=60, deadline=None)
def test_a_text_cut_anywhere_never_accuses_a_rank_that_waits(share, tool):
    found = diagnose_stacks(cut(tool(scenes.loader_reads_slow_mount(2)), share))
    assert found is None or found.culprit_ranks in {None, (2,)}


@given(st.text(alphabet=st.sampled_from('#0 Thread (active): "MainThread"\nFile ", line 3 in f[<0>]{}rank=1 pid=2\t\\x'), max_size=400))
@settings(deadline=None)
def test_no_text_raises(text):
    diagnose_stacks(text)
    diagnose_stacks('Thread 1 (active): "MainThread"\n    f (a.py:1)\n    g (b.py:2)\n' + text)
