"""Who ended first, and of what."""

import msgspec
import pytest

import scenes
from rankpatrol.analysis.crash import diagnose_crash
from rankpatrol.analysis.crash_causes import may_be_a_full_disk
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Collective, DiskRoom, FlightRecording, IoCounters, KernelKills, LogSample, Marks, SystemCall

TORCH = "/env/lib/python3.11/site-packages/torch"
BACKWARD = (("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979), ("main", "/home/u/train.py", 60))
OWN = ("Traceback (most recent call last):", '  File "/home/u/model.py", line 41, in forward', "ValueError: bad batch")
CLOSED = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 96, in train',
    "RuntimeError: Connection closed by peer [::1]:9",
)


def ended(number, status, at_s, *tail):
    sample = scenes.rank(number, Missing("ended"), Missing("ended"))
    return msgspec.structs.replace(
        sample, pid=100 + number, exit_status=status, ended_unix_s=1.8e9 + at_s, log=LogSample(100, tuple(tail), step=12)
    )


def waiting(number):
    return scenes.rank(number, scenes.process(100 + number), scenes.stack(100 + number, *BACKWARD))


def saving(number):
    call = SystemCall("write", (3,), path="/ckpt/last.pt")
    return scenes.rank(number, scenes.process(100 + number, call=call), scenes.stack(100 + number, ("save", "/home/u/train.py", 80)))


def crash(*ranks, **facts):
    return diagnose_crash(msgspec.structs.replace(scenes.snapshot(*ranks), **facts))


def test_the_first_to_fail_is_the_culprit_and_its_exception_is_told():
    found = crash(waiting(0), ended(1, 1, 0.0, *OWN), waiting(2), waiting(3))
    assert (found.verdict, found.cause, found.culprit_ranks, found.certainty) == ("crash", "user_exception", (1,), Certainty.PROVED)
    assert found.sentence == "rank 1 raised ValueError: bad batch in forward (model.py:41)"
    assert found.victim_ranks == (0, 2, 3)


def test_a_victim_that_exits_before_the_culprit_is_still_a_victim():
    """A connection breaks before its owner has ended: interpreter tear-down takes seconds."""
    found = crash(ended(0, 1, 0.0, *CLOSED), ended(1, 1, 1.5, *OWN), ended(2, 1, 0.1, *CLOSED), ended(3, 1, 0.2, *CLOSED))
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == ("user_exception", (1,), (0, 2, 3))


def raised(number, at_s, *tail, status=None):
    """A rank whose probe says that its program has ended with an exception."""
    seen = waiting(number) if status is None else ended(number, status, 9.0, *tail)
    now = scenes.snapshot(seen)
    at_s += now.at_mono_s - (now.at_unix_s - 1.8e9)
    marks = Marks(steps=12, last_step_at_mono_s=None, phase="train_step", phase_since_mono_s=0.0, groups=(), raised_at_mono_s=at_s)
    return msgspec.structs.replace(seen, marks=marks, log=LogSample(100, tuple(tail), step=12))


def test_a_rank_that_raised_is_named_while_its_interpreter_goes_down():
    found = crash(waiting(0), raised(1, -0.5, *OWN), waiting(2), waiting(3))
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == ("user_exception", (1,), (0, 2, 3))
    assert found.certainty is Certainty.SUPPORTED
    assert found.sentence == "rank 1 raised ValueError: bad batch in forward (model.py:41)"
    assert "its interpreter has not gone down yet" in found.reasons_for


def test_victims_that_are_gone_before_it_do_not_hide_it():
    found = crash(ended(0, 1, -1.0, *CLOSED), raised(1, -4.0, *OWN), raised(2, -2.0, *CLOSED), waiting(3))
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == ("user_exception", (1,), (0, 2, 3))
    assert "rank 0 ended +3.00 s from it" in found.reasons_for


@pytest.mark.parametrize(("ago_s", "tail"), [(0.2, OWN), (60.0, ()), (60.0, ("step 12",))])
def test_a_rank_whose_traceback_may_still_be_on_its_way_is_not_blamed(ago_s, tail):
    now = scenes.snapshot(waiting(0)).at_unix_s - 1.8e9
    found = crash(ended(0, 1, 0.0, *CLOSED), raised(1, now - ago_s, *tail), waiting(2), ended(3, 0, -5.0))
    assert (found.cause, found.culprit_ranks) == ("left_early", (3,))


def test_a_rank_that_was_told_to_end_before_its_traceback_came_is_not_blamed():
    found = crash(ended(0, 1, 0.0, *CLOSED), raised(1, 0.1, "step 12", status=-15), raised(2, -3.0, *OWN, status=-15), waiting(3))
    assert (found.cause, found.culprit_ranks) == ("user_exception", (2,))


@pytest.mark.parametrize("status", [1, -15, -6, -11])
def test_whatever_ends_it_on_its_way_down_its_exception_is_the_cause(status):
    found = crash(ended(0, 1, -1.0, *CLOSED), raised(1, -4.0, *OWN, status=status), waiting(2))
    assert (found.cause, found.culprit_ranks, found.certainty) == ("user_exception", (1,), Certainty.PROVED)


def test_an_exception_after_which_it_ends_well_all_the_same_is_no_failure():
    assert crash(raised(0, -4.0, *OWN, status=0), ended(1, 0, 0.0), ended(2, 0, 0.0)) is None


def test_ranks_that_ended_well_are_no_victims_of_a_raise():
    found = crash(waiting(0), ended(1, 0, 0.0), raised(2, -4.0, *OWN), raised(3, -4.0, *OWN, status=0))
    assert (found.culprit_ranks, found.victim_ranks) == ((2,), (0,))


@pytest.mark.parametrize(("status", "cause"), [(-9, "sigkill"), (-11, "sigsegv"), (-6, "sigabrt")])
def test_signals_are_told_apart(status, cause):
    found = crash(ended(0, 1, 0.3, *CLOSED), ended(1, status, 0.0))
    assert (found.cause, found.culprit_ranks, found.certainty) == (cause, (1,), Certainty.PROVED)


@pytest.mark.parametrize(("status", "name"), [(-10, "SIGUSR1"), (-12, "SIGUSR2"), (-13, "SIGPIPE"), (-24, "SIGXCPU"), (-25, "SIGXFSZ")])
def test_signals_are_told_by_name(status, name):
    found = crash(waiting(0), ended(1, status, 0.0, "step 9"))
    assert (found.cause, found.sentence) == ("unknown", f"rank 1 died of {name}")
    assert "the last line of its log: step 9" in found.reasons_for
    assert crash(waiting(0), ended(1, -70, 0.0)).sentence == "rank 1 died of signal 70"


def test_the_words_of_an_abort_are_quoted():
    words = ("terminate called after throwing an instance of 'std::runtime_error'", "  what():  cache index corrupt")
    found = crash(waiting(0), ended(1, -6, 0.0, *words))
    assert found.cause == "sigabrt"
    assert found.sentence == (
        "rank 1 died of SIGABRT: terminate called after throwing an instance of 'std::runtime_error' what(): cache index corrupt"
    )


def test_the_users_line_in_faulthandlers_words_is_the_place():
    frames = (
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007fc041611b80 (most recent call first):",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/home/u/train.py", line 10 in kernel',
    )
    found = crash(waiting(0), ended(1, -11, 0.0, *frames))
    assert (found.cause, found.place) == ("sigsegv", "kernel (train.py:10)")
    assert found.sentence == "rank 1 died of SIGSEGV in kernel (train.py:10): Fatal Python error: Segmentation fault"
    assert crash(waiting(0), ended(1, -9, 0.0, *frames)).place is None


def test_a_kill_for_want_of_memory_is_the_kernels_word():
    line = "Out of memory: Killed process 101 (python3) total-vm:9000kB"
    assert crash(waiting(0), ended(1, -9, 0.0), kills=KernelKills({101: line})).cause == "host_oom_kill"
    assert crash(waiting(0), ended(1, -9, 0.0), kills=KernelKills({999: line})).cause == "sigkill"
    assert crash(waiting(0), ended(1, -9, 0.0), kills=Missing("not permitted")).cause == "sigkill"


def test_full_shared_memory_is_told_from_a_bus_error():
    found = crash(waiting(0), ended(1, -7, 0.0, "ERROR: Unexpected bus error ... insufficient shared memory (shm)"))
    assert found.cause == "shm_too_small"


def test_an_exit_code_without_a_traceback_is_unknown_but_the_rank_is_named():
    found = crash(waiting(0), ended(1, 3, 0.0, "bye"))
    assert (found.cause, found.culprit_ranks) == ("unknown", (1,))
    assert found.sentence.startswith("rank 1 ended with exit code 3 (the last line of its log: bye)")
    silent = crash(waiting(0), ended(1, 3, 0.0, " "))
    assert "last line" not in silent.sentence


def test_an_exception_of_any_name_is_told():
    found = crash(waiting(0), ended(1, 1, 0.0, *OWN[:2], "CorruptShard: shard-00010.tar: bad magic"))
    assert (found.cause, found.sentence) == (
        "user_exception",
        "rank 1 raised CorruptShard: shard-00010.tar: bad magic in forward (model.py:41)",
    )
    assert "the traceback in its log has no last line" in crash(waiting(0), ended(1, 1, 0.0, *OWN[:2])).reasons_for


def test_where_all_ranks_failed_alike_nobody_is_named_and_nobody_ended_of_another():
    found = crash(*(ended(rank, 3, 0.01 * rank) for rank in (2, 0, 1, 3)))
    assert (found.cause, found.culprit_ranks, found.victim_ranks, found.certainty) == ("unknown", None, (), Certainty.PROVED)
    assert found.sentence == "ranks 0-3 ended with exit code 3, each by itself"
    assert found.failure == "ended with exit code 3"
    unparsed = ('  File "/home/u/train.py", line 2', "    def f(:", "SyntaxError: invalid syntax")
    assert crash(ended(0, 1, 0.0, *unparsed), ended(1, 1, 0.1, *unparsed)).sentence == (
        "ranks 0-1 raised SyntaxError: invalid syntax in <module> (train.py:2), each by itself"
    )


def test_ranks_that_failed_alike_are_named_together_and_only_echoes_ended_of_it():
    other = ("Traceback (most recent call last):", '  File "/home/u/train.py", line 9, in save', "KeyError: 'lr'")
    found = crash(ended(0, 1, 0.0, *OWN), ended(1, 1, 0.2, *CLOSED), ended(2, 1, 0.1, *OWN), ended(3, -15, 0.3), ended(4, 1, 0.4, *other))
    assert (found.culprit_ranks, found.victim_ranks) == ((0, 2), (1, 3, 4))
    assert found.sentence == (
        "ranks 0 and 2 raised ValueError: bad batch in forward (model.py:41), each by itself; rank 4 failed otherwise; "
        "ranks 1 and 3 ended of it"
    )


def test_one_exit_code_with_other_last_words_is_another_failure():
    found = crash(ended(0, 1, 0.0, "cannot read shard 7"), ended(1, 1, 0.1, "cannot read shard 9"), ended(2, 1, 0.2, "no licence"))
    assert (found.culprit_ranks, found.victim_ranks) == ((0, 1), (2,))


def test_aborts_are_never_called_alike_since_libraries_abort_victims_too():
    assert crash(ended(0, -6, 0.0), ended(1, -6, 0.1)).culprit_ranks == (0,)


def gone(number):
    return scenes.rank(number, Missing(f"process {100 + number} is gone"), Missing("gone"))


def test_a_rank_that_vanished_with_its_shim_is_named_and_not_those_that_its_launcher_ended():
    """Found by a drill: rank 3's shim was killed, and rank 2 was blamed for the SIGTERM that torchrun sent it."""
    found = crash(ended(0, 1, 0.3, *CLOSED), ended(1, -15, 0.1), ended(2, -15, 0.0), gone(3))
    assert (found.cause, found.culprit_ranks, found.certainty) == ("sigkill", (3,), Certainty.SUPPORTED)


def test_a_rank_that_has_raised_and_whose_exit_is_not_told_yet_did_not_vanish():
    """Seen on real ranks: a victim's process was gone 0.1 s before its shim had told its exit."""
    fresh = msgspec.structs.replace(gone(2), marks=raised(2, 999.9).marks)
    found = crash(ended(0, 1, 0.3, *CLOSED), ended(1, 1, 0.1, *CLOSED), fresh)
    assert found.culprit_ranks is None
    told = msgspec.structs.replace(gone(2), marks=raised(2, -5.0).marks, log=LogSample(100, CLOSED, step=12))
    assert crash(ended(0, 1, 0.3, *CLOSED), ended(1, 1, 0.1, *CLOSED), told).culprit_ranks is None


def test_a_rank_that_failed_by_itself_goes_before_one_that_vanished_later():
    assert crash(ended(0, -15, 0.3), ended(1, 1, 0.1, *OWN), gone(2)).culprit_ranks == (1,)


def test_of_ranks_that_were_told_to_end_and_one_that_failed_the_latter_is_named():
    assert crash(ended(0, -15, 0.0), ended(1, 1, 0.4, *OWN), ended(2, -15, 0.1)).culprit_ranks == (1,)


_WHAT = "op.preamble.length <= op.nbytes. 2000 vs 252. Received data size doesn't match expected size."
ABORTED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    f"  what():  [enforce fail at /b/third_party/gloo/gloo/transport/tcp/pair.cc:456] {_WHAT}",
)


def reducing(number, size):
    entry = Collective(
        group="default_pg", sequence=9, operation="all_reduce", is_p2p=False, state="scheduled", retired=False, input_sizes=((size,),)
    )
    recording = FlightRecording(version="2.10", members={}, status={}, entries=(entry,))
    return msgspec.structs.replace(waiting(number), recording=recording)


def test_a_rank_that_gloo_aborts_for_its_size_is_named_where_all_others_agree():
    found = crash(reducing(0, 4000), ended(1, -6, 0.0, *ABORTED), reducing(2, 4000), reducing(3, 4000))
    assert (found.cause, found.culprit_ranks, found.certainty) == ("collective_mismatch_shape", (1,), Certainty.PROVED)


def test_a_healthy_neighbour_that_gloo_aborts_is_not_blamed():
    found = crash(reducing(0, 4000), ended(1, -6, 0.0, *ABORTED), reducing(2, 9000), reducing(3, 4000))
    assert (found.cause, found.culprit_ranks) == ("collective_mismatch_shape", (2,))


def test_without_recordings_a_mismatch_of_sizes_names_nobody():
    found = crash(waiting(0), ended(1, -6, 0.0, *ABORTED), waiting(2), waiting(3))
    assert (found.cause, found.culprit_ranks) == ("collective_mismatch_shape", None)


def test_echoes_alone_name_nobody():
    found = crash(ended(0, 1, 0.0, *CLOSED), ended(1, 1, 0.1, *CLOSED))
    assert (found.cause, found.culprit_ranks) == ("unknown", None)


def own_server_resets(last):
    return ("Traceback (most recent call last):", '  File "/home/u/data.py", line 13, in get_object', last)


@pytest.mark.parametrize("last", ["ConnectionResetError: [Errno 104] Connection reset by peer", "BrokenPipeError: [Errno 32] Broken pipe"])
def test_a_broken_connection_of_its_own_is_a_first_cause(last):
    found = crash(ended(0, 1, 0.4, *CLOSED), ended(1, 1, 0.5, *CLOSED), ended(2, 1, 0.0, *own_server_resets(last)))
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == ("user_exception", (2,), (0, 1))


def lost_loader(how):
    handler = '  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler'
    return (*CLOSED[:2], handler, f"RuntimeError: DataLoader worker (pid 900) {how}")


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("is killed by signal: Killed. ", "sigkill"),
        ("is killed by signal: Segmentation fault. ", "sigsegv"),
        ("is killed by signal: Aborted. ", "sigabrt"),
        ("is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "data_worker_killed_shm"),
        ("exited unexpectedly", "unknown"),
    ],
)
def test_a_rank_whose_loader_process_died_is_the_first_cause(how, cause):
    found = crash(ended(0, 1, 0.0, *CLOSED), ended(1, 1, 0.2, *CLOSED), ended(2, 1, 3.0, *lost_loader(how)), waiting(3))
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == (cause, (2,), (0, 1, 3))
    assert found.sentence.startswith("rank 2 lost a loader process, which ")
    assert found.failure in found.sentence
    assert found.place is None


def test_a_loader_process_that_the_kernel_killed_for_want_of_memory_is_told_as_such():
    line = "Memory cgroup out of memory: Killed process 900 (pt_data_worker) total-vm:9000kB"
    found = crash(ended(2, 1, 0.0, *lost_loader("is killed by signal: Killed. ")), waiting(3), kills=KernelKills({900: line}))
    assert (found.cause, found.culprit_ranks) == ("data_worker_killed_oom", (2,))
    assert line in found.reasons_for


def test_a_rank_that_was_told_to_end_together_with_its_loader_began_nothing():
    killed = lost_loader("is killed by signal: Terminated. ")
    found = crash(raised(0, -4.0, *killed, status=-15), ended(1, 1, 0.3, *OWN))
    assert (found.culprit_ranks, found.victim_ranks) == ((1,), (0,))


BARE = own_server_resets("RuntimeError: Connection reset by peer")


def test_of_what_all_sounds_like_echoes_the_one_that_failed_well_before_the_others_is_suspected():
    found = crash(ended(0, 1, 2.0, *CLOSED), ended(1, 1, 0.0, *BARE), ended(2, 1, 2.1, *CLOSED))
    assert (found.culprit_ranks, found.certainty) == ((1,), Certainty.SUSPECTED)


def test_of_echoes_that_come_together_nobody_is_named():
    assert crash(ended(0, 1, 0.2, *CLOSED), ended(1, 1, 0.0, *BARE)).culprit_ranks is None
    assert crash(ended(0, 1, 2.0, *BARE), ended(1, 1, 0.0, *CLOSED)).culprit_ranks is None
    assert crash(ended(0, 1, 2.0, *CLOSED), ended(1, 1, 0.0, *BARE), world_size=3).culprit_ranks is None


def test_a_rank_that_left_while_others_wait_for_it_left_early():
    found = diagnose((scenes.snapshot(waiting(0), ended(1, 0, 0.0), waiting(2)),))
    assert (found.verdict, found.cause, found.culprit_ranks) == ("crash", "left_early", (1,))
    assert found.not_to_be_ended is None


def test_a_rank_that_left_early_is_the_cause_of_its_peers_broken_connections():
    found = crash(ended(0, 1, 1.0, *CLOSED), ended(1, 0, 0.0), ended(2, 1, 1.1, *CLOSED))
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == ("left_early", (1,), (0, 2))


def test_a_last_save_after_the_others_left_is_no_crash():
    assert crash(saving(0), ended(1, 0, 0.0), ended(2, 0, 0.1)) is None


def runs_a_command(number, stack=True, ticks=0):
    process = scenes.process(100 + number, call=SystemCall("wait4", (900, 0, 0, 0)))
    child = scenes.process(900, name="awk", state="R", call=SystemCall("running"), ticks=ticks, minor_faults=ticks)
    frames = scenes.stack(100 + number, ("wait", "/usr/lib/python3.11/subprocess.py", 1264), ("export", "/home/u/train.py", 80))
    return scenes.rank(number, process, frames if stack else Missing("no py-spy"), (child, Missing("no Python")))


def test_a_rank_that_left_is_not_blamed_while_another_runs_a_command_that_the_rest_may_wait_for():
    assert crash(runs_a_command(0), waiting(1), waiting(2), ended(3, 0, 0.0)) is None


def test_where_no_stack_tells_so_the_work_of_its_child_does():
    first, then = (scenes.snapshot(runs_a_command(0, False, ticks), waiting(1), ended(2, 0, 0.0)) for ticks in (0, 100))
    assert diagnose((first, then)).culprit_ranks is None
    assert diagnose((first, first)).culprit_ranks == (2,)


LATE = (*CLOSED[:2], "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete")


def test_a_rank_that_left_is_not_blamed_for_the_time_out_of_those_who_wait_for_another():
    found = crash(runs_a_command(0), ended(1, 1, 8.0, *LATE), ended(2, 1, 8.1, *CLOSED), ended(3, 0, 0.0))
    assert (found.cause, found.culprit_ranks) == ("unknown", None)


def test_a_time_out_does_not_prove_that_a_rank_left_early():
    found = crash(ended(0, 1, 8.0, *LATE), ended(1, 0, 0.0))
    assert (found.cause, found.culprit_ranks, found.certainty) == ("left_early", (1,), Certainty.SUPPORTED)
    assert "rank 0 ended of a time-out" in found.reasons_for


def lingering(number, ticks=0):
    sleep = SystemCall("clock_nanosleep", (0, 0, 0, 0))
    process = scenes.process(100 + number, call=sleep, ticks=ticks)
    return scenes.rank(number, process, scenes.stack(100 + number, ("_exit_function", "/home/u/train.py", 99)))


def test_a_rank_that_does_not_go_after_the_others_ended_well_is_a_teardown_that_hangs():
    scene = scenes.snapshot(ended(0, 0, 0.0), lingering(1), ended(2, 0, 0.1))
    found = diagnose((scene, scene))
    assert (found.verdict, found.cause, found.culprit_ranks, found.phase) == ("hang", "teardown_deadlock", (1,), "teardown")
    assert found.certainty is Certainty.SUPPORTED


def test_a_rank_that_still_saves_after_the_others_ended_well_is_left_alone():
    def at(written):
        io = IoCounters(0, written, 0, written)
        last = saving(1)
        return scenes.snapshot(ended(0, 0, 0.0), msgspec.structs.replace(last, process=msgspec.structs.replace(last.process, io=io)))

    found = diagnose((at(0), at(1 << 24)))
    assert (found.verdict, found.culprit_ranks, found.awaited_ranks) == ("benign_wait", None, (1,))


def test_nothing_known_of_a_rank_that_is_left_accuses_nobody():
    unknown = scenes.rank(1, Missing("the kernel hides it"), Missing("no"))
    assert diagnose((scenes.snapshot(ended(0, 0, 0.0), unknown),)).culprit_ranks is None


def test_ranks_that_all_ended_well_are_no_crash():
    assert crash(ended(0, 0, 0.0), ended(1, 0, 4.0)) is None


def test_a_crash_is_left_to_its_launcher():
    assert crash(waiting(0), ended(1, 1, 0.0, *OWN)).not_to_be_ended


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("OSError: [Errno 28] No space left on device: '/ckpt/step_40.pt'", "disk_full"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk_full"),
        ("RuntimeError: unable to write to file </torch_4711_1_0>: No space left on device (28)", "shm_too_small"),
        ("RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0", "user_exception"),
    ],
)
def test_a_full_disk_is_told_from_full_shared_memory(last, cause):
    found = crash(waiting(0), ended(1, 1, 0.0, *OWN[:2], last))
    assert (found.cause, found.culprit_ranks) == (cause, (1,))


TORN = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 80, in save',
    "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
)


@pytest.mark.parametrize(
    ("room", "cause"),
    [
        (DiskRoom({"/ckpt": 0}), "disk_full"),
        (DiskRoom({"/ckpt": 1 << 40}), "user_exception"),
        (Missing("the disk did not answer"), "user_exception"),
    ],
)
def test_a_torn_save_is_a_full_disk_only_where_the_disk_says_so(room, cause):
    found = crash(ended(0, 1, 0.0, *TORN), waiting(1), room=room)
    assert (found.cause, found.culprit_ranks, found.certainty) == (cause, (0,), Certainty.PROVED)


def test_only_a_torn_save_asks_for_the_disk():
    assert may_be_a_full_disk(scenes.snapshot(ended(0, 1, 0.0, *TORN), waiting(1)))
    assert not may_be_a_full_disk(scenes.snapshot(ended(0, 1, 0.0, *OWN), waiting(1)))
    assert crash(ended(0, 1, 0.0, *OWN), waiting(1), room=DiskRoom({"/ckpt": 0})).cause == "user_exception"
