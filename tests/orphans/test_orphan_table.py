"""The decision table, row by row; numbers are those of docs/orphans.md."""

import msgspec
import pytest
from orphan_scenes import DEVICE, NOW, after, gpu, process, scan, word

from rankpatrol.core.records import Missing
from rankpatrol.orphans.history import History, remember
from rankpatrol.orphans.prove import ROWS, judge
from rankpatrol.orphans.records import Environment, Home, HomeKind, JobState, Policy, RecordTie, Verdict

TMUX = Home(HomeKind.SESSION, "tmux-spawn-1.scope")
NOWHERE = Home(HomeKind.NONE)
ESCAPED = process(home=NOWHERE)
LIVE = word(state=JobState.LIVE)
RUN = RecordTie(job="train", attempt=0, rank=3)
SHIM_WORD = word(RUN.key, by="its shim's record", ended_unix_s=NOW - 1, grace_s=0.0, uid=None)

CASES = [
    ("no scheduler answers", 1, Verdict.UNKNOWN, scan(process()), "no scheduler was asked"),
    ("the scheduler is silent", 1, Verdict.UNKNOWN, scan(process(), jobs=[word(state=JobState.UNKNOWN, why="timeout")]), "timeout"),
    ("its cgroup cannot be read", 1, Verdict.UNKNOWN, scan(process(home=Missing("EACCES")), jobs=[word()]), "cannot be told: EACCES"),
    ("in a container", 2, Verdict.UNKNOWN, scan(process(), jobs=[word()], pid_namespace="pid:[4026532000]"), "container"),
    ("its job runs", 4, Verdict.OWN, scan(process(), jobs=[LIVE]), "runs"),
    ("its job is requeued", 4, Verdict.OWN, scan(process(), jobs=[word(state=JobState.LIVE)]), "runs"),
    ("its job ended long ago", 5, Verdict.ORPHAN, scan(process(), jobs=[word()]), "ended 10 min 0 s ago"),
    ("its job ended just now", 5, Verdict.UNKNOWN, scan(process(), jobs=[word(ended_unix_s=NOW - 149)]), "150 s must pass"),
    ("its job ended, no time is told", 5, Verdict.UNKNOWN, scan(process(), jobs=[word(ended_unix_s=None)]), "150 s must pass"),
    (
        "a container of an ended job",
        6,
        Verdict.ORPHAN_CONTAINER,
        scan(process(home=Home(HomeKind.CONTAINER, "ab12" * 16)), jobs=[word()]),
        "container ab12ab12ab12",
    ),
    ("a container of nobody", 1, Verdict.UNKNOWN, scan(process(home=Home(HomeKind.CONTAINER, "ab12" * 16))), "runtime was not asked"),
    ("a pod", 1, Verdict.UNKNOWN, scan(process(home=Home(HomeKind.POD, "0-1"))), "pod 0-1"),
    ("escaped, its user has nothing else", 7, Verdict.LIKELY, scan(ESCAPED, jobs=[word()]), "left its job's cgroup"),
    ("escaped, its user has a login", 8, Verdict.UNKNOWN, scan(ESCAPED, jobs=[word()], session_uids=frozenset({1001})), "other work"),
    ("escaped, its user has a job", 8, Verdict.UNKNOWN, scan(ESCAPED, jobs=[word(), word("78", JobState.LIVE)]), "other work"),
    ("escaped, another user's job", 8, Verdict.UNKNOWN, scan(ESCAPED, jobs=[word(uid=1002)]), "other work"),
    ("escaped, older than its job", 8, Verdict.UNKNOWN, scan(process(home=NOWHERE, started_unix_s=NOW - 9000), jobs=[word()]), "other"),
    ("tmux started in an old job", 9, Verdict.INTERACTIVE, scan(process(home=TMUX), jobs=[word()]), "session"),
    ("ssh taken into the job", 9, Verdict.INTERACTIVE, scan(process(home=Home(HomeKind.JOB, "77", adopted=True)), jobs=[word()]), "login"),
    ("on a GPU of others", 10, Verdict.MISPLACED, scan(process(), jobs=[word(state=JobState.LIVE, devices=frozenset())]), "not given"),
    (
        "persistenced",
        11,
        Verdict.SERVICE,
        scan(process(home=Home(HomeKind.SERVICE, "nvidia-persistenced.service"), exe="/usr/bin/nvidia-persistenced", uid=120)),
        "known service",
    ),
    ("any other service", 11, Verdict.SERVICE, scan(process(home=Home(HomeKind.SERVICE, "vllm.service")), jobs=[word()]), "vllm.service"),
    ("the MPS server", 12, Verdict.SERVICE, scan(process(exe="/usr/bin/nvidia-cuda-mps-server"), jobs=[word()]), "MPS server"),
    ("a client of MPS", 12, Verdict.UNKNOWN, scan(process(), jobs=[word()], mps_uids=frozenset({0})), "client of MPS"),
    ("a true zombie", 15, Verdict.HARMLESS, scan(process(state="Z", threads=0, devices=()), jobs=[word()]), "its parent, process 1"),
    ("in D for a moment", 16, Verdict.UNKNOWN, scan(process(state="D"), jobs=[word()]), "a moment or for ever"),
    ("a thread in D", 16, Verdict.UNKNOWN, scan(process(blocked_threads=1), jobs=[word()]), "D state"),
    ("a forked child holds the context", 19, Verdict.ORPHAN, scan(process(), jobs=[word()], gpus=(gpu(),)), "holds /dev/nvidia0"),
    ("we ourselves", 20, Verdict.OURSELVES, scan(process(500), jobs=[word()]), "rankpatrol itself"),
    ("our ancestor", 20, Verdict.OURSELVES, scan(process(400), jobs=[word()]), "ancestors"),
    ("init", 20, Verdict.OURSELVES, scan(process(1), jobs=[word()]), "init"),
    ("a kernel thread", 20, Verdict.OURSELVES, scan(process(kernel_thread=True), jobs=[word()]), "kernel thread"),
    ("it holds nothing", 21, Verdict.LEFT_OVER, scan(process(devices=()), jobs=[word()]), "holds no device"),
    ("what it holds is hidden", 21, Verdict.UNKNOWN, scan(process(devices=Missing("EACCES")), jobs=[word()]), "EACCES"),
    ("NVML names it, the kernel does not", 21, Verdict.LEFT_OVER, scan(process(devices=()), jobs=[word()], gpus=(gpu(4711),)), "no device"),
    ("nothing ties it to a job", 22, Verdict.UNKNOWN, scan(process(home=NOWHERE, environment=Environment())), "nothing ties it"),
    ("a rank's loader, by its shim's record", 5, Verdict.ORPHAN, scan(process(home=TMUX, tie=RUN), jobs=[SHIM_WORD]), "rank 3's shim made"),
    ("the same inside a live job", 5, Verdict.ORPHAN, scan(process(tie=RUN), jobs=[LIVE, SHIM_WORD]), "its shim's record says"),
    ("the same while its rank lives", 4, Verdict.OWN, scan(process(tie=RUN), jobs=[word(RUN.key, JobState.LIVE), word()]), "runs"),
    ("its environment names a live job", 1, Verdict.UNKNOWN, scan(process(environment=Environment(job="9")), jobs=[word()]), "job 9"),
    ("its environment is hidden", 1, Verdict.UNKNOWN, scan(process(environment=Missing("EACCES")), jobs=[word()]), "environment cannot"),
    ("another user in its cgroup", 1, Verdict.UNKNOWN, scan(process(uid=1002), jobs=[word()]), "not its user's"),
    ("a job id that was used again", 1, Verdict.UNKNOWN, scan(process(started_unix_s=NOW - 9000), jobs=[word()]), "used again"),
]


@pytest.mark.parametrize(("row", "verdict", "seen", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_situation_has_its_row_and_its_sentence(row, verdict, seen, words) -> None:
    judged = after(seen)[0]
    assert judged.verdict is verdict, judged.why
    assert row in judged.rows
    assert words in judged.why
    assert (judged.proof is not None) == (verdict is Verdict.ORPHAN)


def test_one_scan_proves_nothing() -> None:
    seen = scan(process(), jobs=[word()])
    assert after(seen, scans=1)[0].verdict is Verdict.UNKNOWN
    assert after(seen, scans=2)[0].verdict is Verdict.ORPHAN


def test_a_scan_that_misses_it_begins_the_count_anew() -> None:
    there, policy = scan(process(), jobs=[word()]), Policy()
    history = remember(remember(History(), there, idle_floor_bytes=0), scan(), idle_floor_bytes=0)
    assert judge(there, remember(history, there, idle_floor_bytes=0), policy)[0].proof is None


def test_the_same_number_worn_by_another_process_begins_the_count_anew() -> None:
    first, policy = scan(process(), jobs=[word()]), Policy()
    other = msgspec.structs.replace(process(), id=msgspec.structs.replace(process().id, start_ticks=99))
    second = scan(other, jobs=[word()])
    history = remember(remember(History(), first, idle_floor_bytes=0), second, idle_floor_bytes=0)
    assert judge(second, history, policy)[0].proof is None


def test_a_leader_that_ended_is_judged_by_its_living_threads() -> None:
    judged = after(scan(process(state="Z", threads=1 + 1), jobs=[word()]))[0]
    assert (judged.verdict, judged.rows) == (Verdict.ORPHAN, (14, 5))
    assert "its leading thread has ended" in judged.why


def test_d_state_over_five_scans_in_minutes_is_stuck() -> None:
    history, policy = History(), Policy()
    for minute in range(5):
        seen = scan(process(state="D", wait_channel="request_wait_answer"), jobs=[word()], at_unix_s=NOW + 60 * minute)
        history = remember(history, seen, idle_floor_bytes=0)
        judged = judge(seen, history, policy)[0]
        assert judged.verdict is (Verdict.STUCK if minute == 4 else Verdict.UNKNOWN)
    assert "request_wait_answer" in judged.why
    assert judged.proof is None


def test_d_state_that_takes_no_sigkill_for_a_minute_is_stuck() -> None:
    history, policy = History(), Policy()
    for second in (0, 61):
        seen = scan(process(state="D", kill_pending=True), jobs=[word()], at_unix_s=NOW + second)
        history = remember(history, seen, idle_floor_bytes=0)
    assert judge(seen, history, policy)[0].verdict is Verdict.STUCK


@pytest.mark.parametrize("pid", [0, 1, 4294967295, 4294967296])
def test_a_scrambled_list_is_dropped_whole_and_said(pid: int) -> None:
    holder = process(4711)
    bad = gpu(1184, pid, 4711)
    judged = after(scan(holder, jobs=[word()], gpus=(bad,)))
    told = [one for one in judged if one.verdict is Verdict.BAD_READER]
    assert [one.rows for one in told] == [(3,)]
    assert str(pid) in told[0].why
    # The kernel's word stands without NVML; the list itself is not used, not even for the memory column.
    assert judged[0].verdict is Verdict.ORPHAN
    assert judged[0].used_bytes is None


def test_a_pid_that_is_gone_is_passed_over_for_those_who_hold_the_device() -> None:
    judged = after(scan(process(4711), jobs=[word()], gpus=(gpu(999_999),)))
    ghost = next(one for one in judged if one.verdict is Verdict.GHOST_PID)
    assert ghost.rows == (13,)
    assert "held by 4711" in ghost.why


def test_a_pid_that_is_gone_with_nobody_at_the_device_is_not_believed() -> None:
    assert [one.rows for one in after(scan(gpus=(gpu(999_999, used_gib=0),)))] == [(3,)]


def test_memory_that_nobody_holds_is_told_after_three_scans() -> None:
    seen = scan(gpus=(gpu(),))
    assert after(seen, scans=2) == ()
    judged = after(seen, scans=3)[0]
    assert (judged.verdict, judged.rows) == (Verdict.GHOST_MEMORY, (17,))
    assert "39.0 GiB" in judged.why
    assert "Drain the node" in judged.advice


@pytest.mark.parametrize(
    "seen",
    [
        scan(gpus=(gpu(used_gib=0.5),)),
        scan(process(home=NOWHERE, environment=Environment()), gpus=(gpu(),)),
        scan(gpus=(gpu(),), unseen=3),
        scan(gpus=(gpu(),), pid_namespace="pid:[1]"),
        scan(gpus=(gpu(400),)),
        scan(gpus=(gpu(mig=True),)),
    ],
    ids=["idle floor", "held", "not all was seen", "container", "a living pid", "MIG"],
)
def test_memory_is_not_called_ghostly_without_need(seen) -> None:
    assert Verdict.GHOST_MEMORY not in {one.verdict for one in after(seen, scans=5)}


def test_load_without_memory_or_holder_is_a_stuck_counter() -> None:
    judged = after(scan(gpus=(gpu(used_gib=0, busy_percent=100),)), scans=3)[0]
    assert (judged.verdict, judged.rows) == (Verdict.GHOST_TELEMETRY, (18,))


def test_every_row_is_reachable() -> None:
    rows = {row for _, _, _, seen, _ in CASES for row in after(seen)[0].rows}
    gpu_rows = {3, 13, 14, 17, 18}  # each has its own test above
    assert {row.number for row in ROWS} | gpu_rows == rows | gpu_rows
    assert set(range(1, 20)) <= rows | gpu_rows


def test_a_client_of_mps_is_told_by_nvmls_own_list_too() -> None:
    served = gpu(processes=(msgspec.structs.replace(gpu(4711).processes[0], mps=True),))
    assert after(scan(process(), jobs=[word()], gpus=(served,)))[0].rows == (12,)


def test_the_device_given_to_a_job_is_no_misplacement() -> None:
    given = word(state=JobState.LIVE, devices=frozenset({DEVICE}))
    assert after(scan(process(), jobs=[given]))[0].verdict is Verdict.OWN
