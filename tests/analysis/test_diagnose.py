"""Who is named, and who is not, when one thing changes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_ranks import past

import scenes
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import FlightRecording, IoCounters, SocketBytes, SystemCall

TORCH = "/env/lib/python3.11/site-packages/torch"
BACKWARD = (("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979), ("main", "/home/u/train.py", 60))
DATA = (("_MultiProcessingDataLoaderIter._try_get_data", f"{TORCH}/utils/data/dataloader.py", 1291), ("main", "/home/u/train.py", 50))
FETCH = (
    ("load", "/home/u/data.py", 12),
    ("_MapDatasetFetcher.fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
    ("main", "/home/u/train.py", 50),
)
SLEEPS = (("wait_for_file", "/home/u/train.py", 20), ("main", "/home/u/train.py", 55))
READS = SystemCall("read", (5, 0, 4096), path="/data/shard-0042.tar", offset_bytes=1048576)
SLEEP_CALL = SystemCall("clock_nanosleep", (0, 0, 0, 0))
POLL = SystemCall("poll", (0, 1, 5000))


def victim(number):
    return scenes.rank(number, scenes.process(100 + number), scenes.stack(100 + number, *BACKWARD))


def loader(pid, call=READS, state="S", **facts):
    return scenes.process(pid, name="pt_data_worker", call=call, state=state, **facts)


def starving(number=3, *children):
    children = children or ((loader(900), scenes.stack(900, *FETCH)),)
    return scenes.rank(number, scenes.process(100 + number, call=POLL), scenes.stack(100 + number, *DATA), *children)


def sleeper(number=3):
    return scenes.rank(number, scenes.process(100 + number, call=SLEEP_CALL), scenes.stack(100 + number, *SLEEPS))


def test_the_sentence_is_the_contracts():
    found = diagnose((scenes.snapshot(victim(0), victim(1), victim(2), starving()),))
    assert found.sentence == (
        "rank 3 waits for loader process 900, which is blocked reading shard-0042.tar at 1048576; ranks 0-2 wait for it in backward"
    )
    assert (found.cause, found.culprit_ranks, found.victim_ranks) == ("data_loader_worker_stuck", (3,), (0, 1, 2))
    assert (found.file, found.file_offset_bytes, found.process.pid) == ("/data/shard-0042.tar", 1048576, 900)
    assert found.certainty is Certainty.SUPPORTED


def test_a_lone_culprit_is_named_whatever_its_number():
    for culprit in range(4):
        ranks = [starving(number) if number == culprit else victim(number) for number in range(4)]
        assert diagnose((scenes.snapshot(*ranks),)).culprit_ranks == (culprit,)


def test_an_idle_loader_process_is_not_the_stuck_one():
    idle = (loader(899, call=POLL), scenes.stack(899, ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 1)))
    found = diagnose((scenes.snapshot(victim(0), starving(1, idle, (loader(900), scenes.stack(900, *FETCH)))),))
    assert found.process.pid == 900


def test_a_loader_process_without_a_name_of_its_own_is_known_by_its_stack():
    """torch names them from 2.5 on."""
    frames = (*FETCH[:2], ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 308))
    nameless = (scenes.process(900, name="python3", call=READS), scenes.stack(900, *frames))
    helper = (scenes.process(901, name="python3", call=READS), scenes.stack(901, ("main", "/home/u/watcher.py", 3)))
    found = diagnose((scenes.snapshot(victim(0), starving(1, helper, nameless)),))
    assert (found.cause, found.process.pid) == ("data_loader_worker_stuck", 900)


@pytest.mark.parametrize(
    ("seen", "said"),
    [(Missing("the kernel forbids tracing"), "none of the processes below it is known"), (scenes.stack(900), "no loader process of it is")],
)
def test_that_no_loader_process_is_alive_is_only_said_where_it_is_known(seen, said):
    nameless = (scenes.process(900, name="python3", call=READS), seen)
    assert said in diagnose((scenes.snapshot(victim(0), starving(1, nameless)),)).sentence


def test_a_stopped_loader_process_is_named_without_a_stack():
    stopped = (loader(900, state="T"), Missing("it is stopped"))
    found = diagnose((scenes.snapshot(victim(0), starving(1, stopped)),))
    assert (found.cause, found.process.pid) == ("data_loader_worker_stuck", 900)
    assert "is stopped (state T)" in found.sentence


def test_a_stopped_rank_is_named_by_the_kernels_word():
    stopped = scenes.rank(1, scenes.process(101, state="T"), Missing("it is stopped"))
    found = diagnose((scenes.snapshot(victim(0), stopped),))
    assert (found.cause, found.culprit_ranks, found.certainty) == ("rank_stopped", (1,), Certainty.SUPPORTED)


def test_a_rank_under_a_debugger_is_nobodys_fault():
    traced = scenes.rank(1, scenes.process(101, state="t", tracer_pid=77), Missing("it is traced"))
    found = diagnose((scenes.snapshot(victim(0), traced),))
    assert (found.verdict, found.culprit_ranks, found.awaited_ranks) == ("benign_wait", None, (1,))


def test_a_rank_that_sleeps_in_user_code_is_blocked_and_its_line_is_named():
    found = diagnose((scenes.snapshot(victim(0), victim(1), sleeper(2)),))
    assert (found.cause, found.culprit_ranks) == ("rank_blocked", (2,))
    assert "sleeps in wait_for_file (train.py:20)" in found.sentence


def test_two_blocked_ranks_are_both_named():
    found = diagnose((scenes.snapshot(victim(0), sleeper(1), sleeper(2), victim(3)),))
    assert found.culprit_ranks == (1, 2)


def test_a_hook_called_from_backward_is_not_waiting_for_peers():
    hook = scenes.rank(1, scenes.process(101), scenes.stack(101, ("my_hook", "/home/u/train.py", 9), *BACKWARD))
    found = diagnose((scenes.snapshot(victim(0), hook),))
    assert found.culprit_ranks == (1,)


def test_backward_that_runs_is_computing_not_waiting():
    computing = scenes.rank(0, scenes.process(100, state="R", call=SystemCall("running")), scenes.stack(100, *BACKWARD))
    assert 0 not in diagnose((scenes.snapshot(computing, sleeper(1)),)).victim_ranks


def test_backward_that_runs_is_not_blamed_where_it_is_awaited():
    computing = scenes.rank(0, scenes.process(100, state="R", call=SystemCall("running")), scenes.stack(100, *BACKWARD))
    found = diagnose((scenes.snapshot(computing, victim(1)),))
    assert (found.verdict, found.culprit_ranks) == ("undetermined", None)


def later(snapshot, rank, **facts):
    """The same scene two seconds on, with one rank's facts changed."""
    ranks = tuple(
        msgspec.structs.replace(each, process=msgspec.structs.replace(each.process, **facts)) if each.rank == rank else each
        for each in snapshot.ranks
    )
    return msgspec.structs.replace(snapshot, ranks=ranks, at_mono_s=snapshot.at_mono_s + 2)


def test_an_awaited_rank_that_reads_is_a_benign_wait():
    first = scenes.snapshot(sleeper(0), victim(1))
    found = diagnose((first, later(first, 0, io=IoCounters(1 << 20, 0, 0, 0))))
    assert (found.verdict, found.awaited_ranks, found.culprit_ranks) == ("benign_wait", (0,), None)
    assert "read 1048576 bytes" in found.sentence


def test_a_busy_child_is_work_of_its_rank():
    def at(read_bytes):
        child = scenes.process(900, name="cp", call=SystemCall("read"), io=IoCounters(read_bytes, 0, 0, 0))
        return scenes.snapshot(
            scenes.rank(0, scenes.process(100, call=SystemCall("wait4")), scenes.stack(100, *SLEEPS), (child, Missing("not Python"))),
            victim(1),
        )

    assert diagnose((at(0), at(1 << 30))).verdict == "benign_wait"


def connected(received_bytes, remote="93.184.216.34:443", peers=(), acked_bytes=0):
    """A rank that waits for its connection, and another that waits for it."""
    here = SocketBytes(inode=7, local="10.0.0.1:50000", remote=remote, received_bytes=received_bytes, acked_bytes=acked_bytes)
    there = tuple(SocketBytes(inode=8, local=address, remote="10.0.0.1:50000", received_bytes=0) for address in peers)
    downloading = scenes.process(100, call=SystemCall("recvfrom", (3,)), sockets=(here,))
    waiting = msgspec.structs.replace(victim(1), process=msgspec.structs.replace(victim(1).process, sockets=there))
    return scenes.snapshot(scenes.rank(0, downloading, scenes.stack(100, ("fetch", "/home/u/hub.py", 7))), waiting)


def test_a_download_that_trickles_is_work():
    found = diagnose((connected(0), connected(300)))
    assert (found.verdict, found.awaited_ranks) == ("benign_wait", (0,))
    assert "received 300 bytes from 93.184.216.34:443" in found.sentence


def test_an_upload_is_work():
    """Found by an attack: a checkpoint went to an object store from memory, at 350 kB/s, and its rank was ended."""
    found = diagnose((connected(0), connected(0, acked_bytes=350_000)))
    assert (found.verdict, found.awaited_ranks) == ("benign_wait", (0,))
    assert "sent 350000 bytes to 93.184.216.34:443" in found.sentence


def test_a_heartbeat_that_is_sent_is_no_work():
    assert diagnose((connected(0), connected(0, acked_bytes=1500))).verdict != "benign_wait"


def test_what_is_sent_to_peers_is_no_work():
    peer = "10.0.0.1:29500"
    assert diagnose((connected(0, peer, (peer,)), connected(0, peer, (peer,), acked_bytes=350_000))).verdict != "benign_wait"


def test_what_peers_send_is_no_work():
    peer = "10.0.0.1:29500"
    found = diagnose((connected(0, remote=peer, peers=(peer,)), connected(300, remote=peer, peers=(peer,))))
    assert found.verdict != "benign_wait"


def test_a_silent_connection_is_no_work():
    assert diagnose((connected(300), connected(300))).verdict != "benign_wait"


def spinning(at_line, owns_gil=True):
    busy = scenes.process(100, state="R", call=SystemCall("running"))
    return scenes.snapshot(scenes.rank(0, busy, scenes.stack(100, ("spin", "/home/u/train.py", at_line), owns_gil=owns_gil)), victim(1))


def looks(lines):
    """Looks two seconds apart at a rank that burns a core, at these lines."""
    return tuple(later(spinning(line), 0, cpu_ticks=200 * number, main_thread_ticks=200 * number) for number, line in enumerate(lines))


def test_a_loop_of_one_line_is_a_spin_once_enough_looks_agree():
    assert diagnose(looks([7, 7])).verdict == "undetermined"
    found = diagnose(looks([7, 8, 7, 9, 8]))
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "spin", (0,))


def busy_loader(line, ticks):
    child = loader(900, call=SystemCall("running"), state="R", ticks=ticks)
    return scenes.snapshot(victim(0), starving(1, (child, scenes.stack(900, ("decode", "/home/u/data.py", line), *FETCH, owns_gil=True))))


def test_a_loader_in_an_endless_loop_is_no_more_than_suspected_until_enough_looks_agree():
    few = diagnose(tuple(busy_loader(7, 200 * number) for number in range(2)))
    assert (few.cause, few.culprit_ranks, few.certainty) == ("data_loader_worker_stuck", (1,), Certainty.SUSPECTED)
    enough = diagnose(tuple(busy_loader(7, 200 * number) for number in range(5)))
    assert (enough.culprit_ranks, enough.certainty) == ((1,), Certainty.SUPPORTED)
    assert "gets nothing done" in enough.sentence


def test_a_loader_that_computes_in_changing_places_is_a_benign_wait():
    seen = diagnose(tuple(busy_loader(line, 200 * number) for number, line in enumerate((7, 9, 21, 30, 44))))
    assert (seen.verdict, seen.awaited_ranks) == ("benign_wait", (1,))


def test_a_loop_that_wrote_something_in_any_of_the_looks_is_no_spin():
    history = list(looks([7, 7, 7, 7, 7, 7, 7]))
    for at in range(3, len(history)):
        history[at] = later(history[at], 0, io=IoCounters(0, 1 << 20, 0, 0))
    assert diagnose(tuple(history)).verdict == "undetermined"


def test_a_spin_says_since_when_nothing_was_done():
    history = tuple(msgspec.structs.replace(each, at_mono_s=1000.0 + 2 * at) for at, each in enumerate(looks([7] * 5)))
    assert diagnose(history).quiet_since_mono_s == 1000.0


def test_one_line_that_computes_in_a_library_is_never_called_a_spin():
    """Found by a drill: an autotuner's products stand in one line for half a minute, and its rank was ended."""
    history = tuple(later(spinning(7, owns_gil=False), 0, cpu_ticks=200 * number, main_thread_ticks=200 * number) for number in range(12))
    found = diagnose(history)
    assert (found.verdict, found.culprit_ranks) == ("undetermined", None)


def test_two_functions_in_turn_are_work_however_few_their_lines():
    """Found by a drill: six looks at a rank that built a vocabulary in five functions met three lines only, and it was ended."""
    history = list(looks([7, 7, 7, 7, 7, 7]))
    other = scenes.stack(100, ("tokenise", "/home/u/train.py", 7))
    history[2] = msgspec.structs.replace(history[2], ranks=(msgspec.structs.replace(history[2].ranks[0], stack=other), history[2].ranks[1]))
    found = diagnose(tuple(history))
    assert (found.verdict, found.culprit_ranks) == ("benign_wait", None)


def test_a_loop_that_touches_new_memory_is_work():
    history = looks([7, 7, 7, 7, 7, 7])
    grown = tuple(later(each, 0, minor_faults=10 * number) for number, each in enumerate(history))
    assert diagnose(grown).verdict == "benign_wait"


def test_cpu_with_changing_frames_is_work():
    found = diagnose(looks([7, 8, 19, 31]))
    assert (found.verdict, found.awaited_ranks) == ("benign_wait", (0,))


def test_a_loader_in_uninterruptible_sleep_is_named_but_ending_the_job_would_not_help():
    stuck = (loader(900, state="D"), scenes.stack(900, *FETCH))
    found = diagnose((scenes.snapshot(victim(0), starving(1, stuck)),))
    assert (found.culprit_ranks, found.process.pid) == ((1,), 900)
    assert "no signal reaches it" in found.not_to_be_ended


def test_two_ranks_that_wait_for_files_in_one_folder_have_a_storage_problem_that_no_restart_mends():
    one, other = ((loader(pid), scenes.stack(pid, *FETCH)) for pid in (900, 901))
    found = diagnose((scenes.snapshot(victim(0), starving(1, one), starving(2, other)),))
    assert (found.culprit_ranks, found.certainty) == ((1, 2), Certainty.SUPPORTED)
    assert "several ranks wait for files in /data" in found.not_to_be_ended


def test_when_every_rank_waits_for_storage_no_rank_is_to_blame():
    found = diagnose((scenes.snapshot(starving(0, (loader(900), scenes.stack(900, *FETCH))), starving(1, (loader(901), Missing("no")))),))
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "filesystem_stall", None)
    assert found.not_to_be_ended


def test_a_rank_in_a_checkpoint_says_so():
    saving = (("write", f"{TORCH}/serialization.py", 10), ("main", "/home/u/train.py", 70))
    writer = scenes.rank(0, scenes.process(100, call=SystemCall("write", (3,), path="/ckpt/a.pt")), scenes.stack(100, *saving))
    assert diagnose((scenes.snapshot(writer, victim(1)),)).phase == "checkpoint"


def test_a_rank_that_cannot_be_seen_keeps_everybody_else_only_suspected():
    unseen = scenes.rank(1, Missing("/proc is hidden"), Missing("no"))
    found = diagnose((scenes.snapshot(victim(0), unseen, starving(2)),))
    assert (found.culprit_ranks, found.certainty) == ((2,), Certainty.SUSPECTED)


def test_nobody_is_named_when_a_rank_has_ended_or_is_missing():
    ended = msgspec.structs.replace(victim(1), exit_status=0, process=Missing("ended"))
    assert diagnose((scenes.snapshot(victim(0), ended, starving(2)),)).culprit_ranks is None
    assert diagnose((scenes.snapshot(victim(0), starving(1), world_size=3),)).culprit_ranks is None


def test_nothing_seen_is_refused():
    with pytest.raises(ValueError, match="nothing was seen"):
        diagnose(())


@pytest.mark.parametrize(("ranks", "words"), [((3,), "rank 3"), ((0, 1, 2), "ranks 0-2"), ((0, 2, 5, 6, 7), "ranks 0, 2 and 5-7")])
def test_ranks_are_said_in_runs(ranks, words):
    assert say_ranks(ranks) == words


SCENES = [
    *(scenes.recorded(name) for name in scenes.SCENARIOS),
    scenes.snapshot(victim(0), victim(1), victim(2), starving()),
    scenes.snapshot(victim(0), sleeper(1), sleeper(2), victim(3)),
]


def blinded(sample, what):
    """The sample with something of it not seen."""
    gone = Missing("refused")
    match what:
        case "stack":
            return msgspec.structs.replace(sample, stack=gone)
        case "child stacks":
            return msgspec.structs.replace(sample, child_stacks=dict.fromkeys(sample.child_stacks, gone))
        case "process":
            return msgspec.structs.replace(sample, process=gone, stack=gone)
        case _:
            hidden = msgspec.structs.replace(sample.process, system_call=gone, wait_channel=gone)
            return msgspec.structs.replace(sample, process=hidden, stack=gone)


@given(
    st.sampled_from(SCENES), st.dictionaries(st.integers(0, 3), st.sampled_from(["stack", "child stacks", "process", "ptrace"]), min_size=1)
)
def test_seeing_less_never_accuses_anybody_new_nor_makes_it_more_certain(seen, hidden):
    whole = diagnose((seen,))
    ranks = tuple(blinded(each, hidden[each.rank]) if each.rank in hidden else each for each in seen.ranks)
    less = diagnose((msgspec.structs.replace(seen, ranks=ranks),))
    assert set(less.culprit_ranks or ()) <= set(whole.culprit_ranks or ())
    order = list(Certainty)
    if less.culprit_ranks:
        assert order.index(less.certainty) >= order.index(whole.certainty)


@pytest.mark.parametrize(("state", "waits"), [("S", True), ("R", False)])
def test_where_the_kernel_hides_calls_a_rank_asleep_in_backward_waits_for_its_peers(state, waits):
    hidden = scenes.rank(0, scenes.process(100, state=state, call=Missing("the kernel refuses")), scenes.stack(100, *BACKWARD))
    assert (0 in diagnose((scenes.snapshot(hidden, sleeper(1)),)).victim_ranks) is waits


def loop_with(gives_lock):
    history = looks([7] * 5)
    asked = msgspec.structs.replace(history[-1].ranks[0], gives_lock=gives_lock)
    return (*history[:-1], msgspec.structs.replace(history[-1], ranks=(asked, history[-1].ranks[1])))


@pytest.mark.parametrize(("gives_lock", "cause"), [(False, "gil_held"), (True, "spin"), (Missing("no probe"), "spin")])
def test_a_loop_that_keeps_the_lock_from_who_asks_is_below_python_and_no_loop_of_its_own(gives_lock, cause):
    found = diagnose(loop_with(gives_lock))
    assert (found.verdict, found.cause, found.culprit_ranks, found.certainty) == ("hang", cause, (0,), Certainty.SUPPORTED)


def below(call, number=3, *, owns_gil=False, state="S"):
    at = scenes.stack(100 + number, ("update_index", "/home/u/index.py", 9), owns_gil=owns_gil)
    return scenes.rank(number, scenes.process(100 + number, call=call, state=state), at)


def told_below(*ranks):
    found = diagnose(tuple(scenes.snapshot(victim(0), each) for each in ranks))
    return found.verdict, found.cause, found.culprit_ranks, found.certainty


MUTEX = SystemCall("futex", (0x7F00, 0x80, 2, 0, 0, 0))
SEMAPHORE = SystemCall("futex", (0x7F00, 0x189, 0, 0, 0, 0xFFFFFFFF))


def test_a_mutex_that_is_never_given_is_below_python():
    assert told_below(below(MUTEX), below(MUTEX)) == ("hang", "below_python", (3,), Certainty.SUPPORTED)


@pytest.mark.parametrize(
    "looks_at",
    [
        pytest.param((below(MUTEX),), id="one look alone"),
        pytest.param((below(SEMAPHORE), below(SEMAPHORE)), id="a semaphore, as Python's own locks are"),
        pytest.param((below(MUTEX), below(SystemCall("futex", (0x8F00, 0x80, 2, 0, 0, 0)))), id="another mutex each time"),
        pytest.param((below(SystemCall("futex")), below(SystemCall("futex"))), id="arguments that are not known"),
    ],
)
def test_any_other_wait_for_a_lock_is_a_rank_that_is_blocked(looks_at):
    assert told_below(*looks_at)[1] == "rank_blocked"


def test_whoever_sleeps_with_the_interpreters_lock_is_in_c_code():
    asleep = below(SLEEP_CALL, owns_gil=True)
    assert told_below(asleep, asleep) == ("hang", "gil_held", (3,), Certainty.SUPPORTED)


def test_a_lock_that_was_held_in_one_look_of_two_says_nothing():
    assert told_below(below(SLEEP_CALL, owns_gil=True), below(SLEEP_CALL))[1] == "rank_blocked"


def test_a_victim_in_a_mutex_is_no_culprit():
    waits = scenes.rank(1, scenes.process(101, call=MUTEX), scenes.stack(101, *BACKWARD))
    found = diagnose((scenes.snapshot(victim(0), waits, sleeper()),) * 2)
    assert found.culprit_ranks == (3,)


PDB = (
    ("Cmd.cmdloop", "/env/lib/python3.11/cmd.py", 126),
    ("Pdb._cmdloop", "/env/lib/python3.11/pdb.py", 362),
    ("Pdb.interaction", "/env/lib/python3.11/pdb.py", 415),
    ("Bdb.dispatch_line", "/env/lib/python3.11/bdb.py", 112),
)
AT_TERMINAL = SystemCall("read", (0, 0, 1024), path="/dev/pts/3")


def debugged(call=AT_TERMINAL, frames=PDB):
    return scenes.rank(3, scenes.process(103, call=call), scenes.stack(103, *frames, ("train", "/home/u/train.py", 60)))


def test_a_rank_at_a_breakpoint_is_waited_for_and_not_blamed():
    found = diagnose((scenes.snapshot(victim(0), debugged()),) * 2)
    assert (found.verdict, found.culprit_ranks, found.awaited_ranks) == ("benign_wait", None, (3,))
    assert "debugs" in found.sentence


def test_a_program_that_a_debugger_runs_is_no_program_that_stands_in_it():
    run_by_pdb = (("wait", "/home/u/train.py", 20), ("Bdb.run", "/env/lib/python3.11/bdb.py", 600), *PDB)
    assert diagnose((scenes.snapshot(victim(0), debugged(SLEEP_CALL, run_by_pdb)),) * 2).culprit_ranks == (3,)


BARRIER = (
    ("barrier", f"{TORCH}/distributed/distributed_c10d.py", 5025),
    ("save", "/home/u/train.py", 77),
    ("main", "/home/u/train.py", 90),
)


def at_barrier(number, line=77):
    frames = (BARRIER[0], ("save", "/home/u/train.py", line), BARRIER[2])
    return scenes.rank(number, scenes.process(100 + number), scenes.stack(100 + number, *frames))


def all_wait(*ranks, **facts):
    found = diagnose((scenes.snapshot(*ranks, **facts),) * 2)
    return found.verdict, found.cause, found.culprit_ranks, found.certainty


UNKNOWN = ("undetermined", "unknown", None, Certainty.SUSPECTED)


def test_without_recordings_the_one_in_backward_while_all_others_meet_elsewhere_is_suspected_at_most():
    seen = all_wait(at_barrier(0), at_barrier(1), victim(2), at_barrier(3))
    assert seen == ("hang", "rank_missing_collective", (2,), Certainty.SUSPECTED)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((victim(0), victim(1), at_barrier(2), victim(3)), id="one alone at a line may be meant to be there"),
        pytest.param((at_barrier(0), victim(1)), id="of two each is odd"),
        pytest.param((at_barrier(0), at_barrier(1), victim(2)), id="two of three may be a group of their own"),
        pytest.param((at_barrier(0), at_barrier(1, line=99), victim(2), at_barrier(3)), id="the others do not stand together"),
        pytest.param((at_barrier(0), victim(1), victim(2), at_barrier(3)), id="two of each"),
    ],
)
def test_stacks_alone_accuse_nobody_else(ranks):
    assert all_wait(*ranks) == UNKNOWN


def recorded_stand(*entries):
    recording = FlightRecording(version="2.10", members={}, status={}, entries=entries)
    return [msgspec.structs.replace(each, recording=recording) for each in (at_barrier(0), at_barrier(1), victim(2), at_barrier(3))]


def test_where_recordings_are_at_hand_stacks_alone_suspect_nobody():
    assert all_wait(*recorded_stand(*past(5))) == UNKNOWN


def test_recorders_that_hold_nothing_are_as_good_as_none():
    """As under torch 2.6 and 2.9, with gloo."""
    ranks = recorded_stand()
    assert all_wait(*ranks) == ("hang", "rank_missing_collective", (2,), Certainty.SUSPECTED)
    found = diagnose((scenes.snapshot(*ranks),) * 2)
    assert "hold none of its collectives" in found.reasons_against[0]
    assert found.suggested == ()
