"""Kinds of texts that once misled: each in the words of other reports, with the culprit on another rank."""

import json
from pathlib import Path

import pytest
import told_scenes as scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from told_attacks import ATTACKS

import scenes as live
import stack_texts
from rankpatrol.analysis.causes.loader import waits_for_index
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.analysis.told.listings import diagnose_listing
from rankpatrol.analysis.told.stacks import diagnose_stacks
from stack_texts import F, P

TOLD = Path(__file__).parents[1] / "data" / "told"
WORKERS = json.loads((TOLD / "loader_workers.json").read_text())


def answer(text):
    found = diagnose_listing(text) or diagnose_stacks(text)
    if found is None:
        return None
    named = found.awaited_ranks if found.verdict == "benign_wait" else found.culprit_ranks
    return found.verdict, found.cause, named


STILL = "-- no step for 25 min --\n"


def shown(world, *left_out, frames=scenes.ALL_REDUCE):
    return stack_texts.pyspy([each for each in scenes.ranks(world, 0, frames, frames) if each.rank not in left_out])


@pytest.mark.parametrize(
    "what",
    [
        "Error: Failed to suspend process: timed out after 10s\n",
        "Error: No such process (os error 3)\n",
    ],
)
def test_the_one_process_that_no_tool_can_hold_is_what_the_others_wait_for(what):
    assert answer(shown(6, 4) + f"## rank=4 node=n2 pid=4104\n{what}{STILL}") == ("hang", "unknown", (4,))


@pytest.mark.parametrize(
    "text",
    [
        shown(6, 4) + "## rank=4 node=n2 pid=4104\nError: Permission Denied: Try running again with elevated permissions\n" + STILL,
        shown(6, 2, 4) + STILL,
        shown(6, 4, 5) + "-- world_size: 6, no step for 25 min --\n",
        shown(6, 2, 4) + "".join(f"## rank={r} pid=410{r}\nError: Failed to suspend process: timed out\n" for r in (2, 4)) + STILL,
    ],
)
def test_not_all_are_in_a_collective_while_some_are_not_seen(text):
    assert answer(text) == ("hang", "unknown", None)


@pytest.mark.parametrize(
    "line",
    ["/proc/4103/status: State:\tT (stopped)\n", "State: T (stopped)\n", "4103 stat=Tl\n", "-- STAT T  wchan do_signal_stop --\n"],
)
def test_a_state_line_in_any_spelling_tells_of_a_stopped_rank(line):
    text = shown(5, 3, frames=scenes.BACKWARD) + f"## rank=3 node=n1 pid=4103\nError: Failed to suspend process\n{line}{STILL}"
    assert answer(text) == ("hang", "rank_stopped", (3,))


def indented(text, margin):
    return "\n".join(margin + line if line else line for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("margin", ["    ", "\t", "> ", "  > "])
@pytest.mark.parametrize("tool", [stack_texts.pyspy, stack_texts.faulthandler, stack_texts.pystack], ids=lambda tool: tool.__name__)
def test_dumps_may_be_indented_or_quoted(margin, tool):
    assert answer(indented(tool(scenes.loader_reads_slow_mount(1)), margin)) == ("hang", "data_loader_worker_stuck", (1,))


SLEEPS = {
    "time.sleep(30)": ("hang", "unknown", (2,)),
    "while not os.path.exists(flag): time.sleep(1)": ("hang", "unknown", (2,)),
    "loss = loss.item()": ("undetermined", "unknown", None),
    "handle.wait()": ("hang", "collective_mismatch_op", None),
}


@pytest.mark.parametrize("source", SLEEPS)
def test_a_line_of_code_tells_what_its_rank_waits_in(source):
    head = "## rank=2 node=n1 pid=4102\nTraceback for thread 4102 (python3) [] (most recent call last):\n"
    own = (
        '    (Python) File "/home/u/train.py", line 9, in <module>\n        main()\n'
        f'    (Python) File "/home/u/quota.py", line 31, in wait_for_token\n        {source}\n'
    )
    assert answer(shown(5, 2) + head + own) == SLEEPS[source]


@pytest.mark.parametrize("odd", [1, 3])
def test_a_rank_that_waits_for_a_flag_while_all_others_meet_is_what_they_wait_for(odd):
    polls = (F("sleep", "time"), F("wait_until_written", "flags.py", 31), *scenes.STEP)
    assert answer(stack_texts.pyspy(scenes.ranks(4, odd, polls))) == ("hang", "unknown", (odd,))
    assert answer(stack_texts.pyspy(scenes.ranks(4, odd, scenes.ALL_REDUCE, polls)))[2] is None


def test_a_remark_between_looks_is_no_header():
    text = shown(4, 3) + stack_texts.pyspy([P(3, 4103, scenes.LOCKED_FILE)])
    text += "# second dump after 120 s: same frames on all ranks; ranks 0-2 last step 71, rank 3 last step 70\n"
    assert answer(text) == ("hang", "unknown", (3,))


FORWARD = (F("linear", "torch/nn/modules/linear.py", 125), F("forward", "model.py", 41), *scenes.STEP)
UPDATE = (F("step", "torch/optim/adamw.py", 243), *scenes.STEP)


@pytest.mark.parametrize("steps", ["", "2026-02-03 11:00:02 step 812\n2026-02-03 11:00:12 step 823\n"])
def test_ranks_that_all_moved_through_their_meeting_are_healthy(steps):
    places = [(FORWARD, scenes.BACKWARD), (scenes.ALL_REDUCE, UPDATE), (scenes.BACKWARD, scenes.ALL_REDUCE)]
    looks = [stack_texts.pyspy([P(rank, 80 + rank, place[at], idle=False) for rank, place in enumerate(places)]) for at in (0, 1)]
    assert answer("# sample 1\n" + looks[0] + "# sample 2\n" + looks[1] + steps) == ("healthy", "none", None)


def test_steps_in_a_log_before_the_dump_are_no_sign_of_life():
    log = "2026-02-03 11:00:02 step 812\n2026-02-03 11:00:12 step 823\n"
    assert answer(log + stack_texts.pyspy(scenes.ranks(4, 3, scenes.DATA))) == ("hang", "data_loader_worker_stuck", (3,))


@pytest.mark.parametrize("tool", [stack_texts.faulthandler, stack_texts.traceback, stack_texts.gdb], ids=lambda tool: tool.__name__)
def test_a_plain_line_of_the_user_is_suspected_where_all_others_meet(tool):
    reads = (F("parse_manifest", "manifest.py", 12), *scenes.STEP)
    found = diagnose_stacks(tool(scenes.ranks(5, 2, reads)))
    assert (found.verdict, found.cause, found.culprit_ranks, found.certainty) == ("hang", "unknown", (2,), "suspected")
    assert found.reasons_against
    for busy in (FORWARD, (F("attention", "model.py", 9), F("forward", "model.py", 3), *scenes.STEP), UPDATE):
        assert answer(tool(scenes.ranks(5, 2, busy))) == ("undetermined", "unknown", None)


def test_wrappers_of_dynamo_in_a_running_program_are_no_compilation():
    gathers = (
        F("all_gather_coalesced", "deepspeed/runtime/zero/partition_parameters.py", 1254),
        F("wrapped_fn", "deepspeed/utils/nvtx.py", 18),
        F("_fn", "torch/_dynamo/eval_frame.py", 600),
        F("_call_impl", "torch/nn/modules/module.py", 1592),
        *scenes.STEP,
    )
    assert answer(stack_texts.pyspy(scenes.ranks(4, 1, scenes.LOCKED_FILE, gathers))) == ("hang", "unknown", (1,))


def _loaders(situation):
    """Rank 1 of three waits for its two loader processes, as they were recorded; the others wait for it."""
    own, *workers = WORKERS[situation]
    frames = [[tuple(frame) for frame in each["frames"]] for each in (own, *workers)]
    taken = [live.stack(each["pid"], *its) for each, its in zip((own, *workers), frames, strict=True)]
    children = [(live.process(each["pid"], name="pt_data_worker"), its) for each, its in zip(workers, taken[1:], strict=True)]
    waiting = [tuple((f.name, "/opt/venv/lib/python3.11/site-packages/" + f.file, f.line) for f in scenes.ALL_REDUCE[:1])] * 3
    peers = [live.rank(number, live.process(10 + number), live.stack(10 + number, *waiting[number])) for number in (0, 2)]
    return live.snapshot(peers[0], live.rank(1, live.process(own["pid"]), taken[0], *children), peers[1]), workers, taken[1:]


@pytest.mark.parametrize("situation", WORKERS)
def test_a_loader_process_is_idle_only_where_it_waits_for_an_index(situation):
    snapshot, workers, taken = _loaders(situation)
    found = diagnose((snapshot,))
    busy = [each["pid"] for each, its in zip(workers, taken, strict=True) if not waits_for_index(its.main_thread())]
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "data_loader_worker_stuck", (1,))
    assert busy == [found.process.pid]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_answer_is_one_that_the_text_allows(name):
    text, allowed = ATTACKS[name]
    assert answer(text) in allowed


MEETS = {"all_reduce": scenes.ALL_REDUCE, "backward": scenes.BACKWARD, "sync": scenes.SYNCS}
WORKS = {"forward": FORWARD, "update": UPDATE}


@given(
    places=st.lists(st.sampled_from([*MEETS, *WORKS]), min_size=2, max_size=8),
    tool=st.sampled_from(stack_texts.ALL),
    unseen=st.sets(st.integers(0, 7)),
)
@settings(max_examples=150, deadline=None)
def test_a_moment_of_a_running_job_is_never_a_hang(places, tool, unseen):
    frames = {**MEETS, **WORKS}
    ranks = [P(r, 100 + r, frames[place], idle=place in MEETS) for r, place in enumerate(places) if r not in unseen]
    found = diagnose_stacks(tool(ranks)) if ranks else None
    assert found is None or found.verdict in {"undetermined", "healthy"}


@given(
    odd=st.integers(0, 5),
    unseen=st.sets(st.integers(0, 5)),
    tool=st.sampled_from(stack_texts.ALL),
    after=st.sampled_from(["", STILL, "-- 10 min later: identical --\n", "step 7 | 1 s/it\nstep 8 | 1 s/it\n"]),
)
@settings(max_examples=150, deadline=None)
def test_a_rank_that_meets_the_others_is_never_named_for_one_that_is_not_shown(odd, unseen, tool, after):
    ranks = [each for each in scenes.ranks(6, odd, scenes.DATA) if each.rank not in unseen]
    found = diagnose_stacks(tool(ranks) + after) if ranks else None
    assert found is None or found.culprit_ranks in {None, (odd,)}
    gap = odd in unseen and any(each.rank > odd for each in ranks)
    assert found is None or not gap or found.cause != "collective_started_everywhere"


@pytest.mark.parametrize(
    "text", [" " * 200_000 + "PID", "Thread " + " " * 200_000 + "x", "Thread\n" + "> " * 100_000, "PID squeue " + "'a'" * 20_000]
)
def test_lines_without_end_are_no_reason_to_wait(text):
    assert answer(text) is None
