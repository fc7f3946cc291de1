"""Nobody unproven is ever signalled: over random scans a proof stands only where each of its conditions holds by itself."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from orphan_scenes import NOW, after, gpu, process, scan, word

from rankpatrol.core.records import Missing
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.records import (
    INITIAL_PID_NAMESPACE,
    Environment,
    Home,
    HomeKind,
    JobState,
    Policy,
    RecordTie,
    Scan,
    Verdict,
)

REASON = Missing("not seen")
RUN = RecordTie(job="train", attempt=0, rank=3)
jobs = st.sampled_from(["77", "78", "79"])
homes = st.one_of(
    st.builds(Home, st.sampled_from(HomeKind), jobs), st.builds(Home, st.just(HomeKind.JOB), jobs, st.booleans()), st.just(REASON)
)
environments = st.one_of(st.builds(Environment, job=st.none() | jobs, mps=st.booleans()), st.just(REASON))
processes = st.builds(
    process,
    st.sampled_from([1, 400, 500, 4711, 4712, 4713]),
    uid=st.sampled_from([0, 1001, 1002]),
    state=st.sampled_from("RSDZTt"),
    threads=st.integers(0, 3),
    blocked_threads=st.integers(0, 1),
    kill_pending=st.booleans(),
    kernel_thread=st.booleans(),
    started_unix_s=st.floats(NOW - 9000, NOW),
    home=homes,
    environment=environments,
    devices=st.sampled_from([(), ("/dev/nvidia0",), ("/dev/kfd",), REASON]),
    tie=st.none() | st.just(RUN),
    exe=st.sampled_from(["/usr/bin/python3", "/usr/bin/nvidia-cuda-mps-server", REASON]),
)
words = st.builds(
    word,
    jobs | st.just(RUN.key),
    st.sampled_from(JobState),
    started_unix_s=st.none() | st.floats(NOW - 9000, NOW),
    ended_unix_s=st.none() | st.floats(NOW - 1000, NOW),
    uid=st.none() | st.sampled_from([1001, 1002]),
    grace_s=st.none() | st.just(0.0),
)
lists = st.lists(st.sampled_from([0, 1, 400, 4711, 4712, 99_999, 4294967295]), max_size=5)
scans = st.builds(
    lambda seen, said, named, namespace, mps: scan(
        *{one.id.pid: one for one in seen}.values(), jobs=said, gpus=named, pid_namespace=namespace, mps_uids=mps
    ),
    st.lists(processes, max_size=6),
    st.lists(words, max_size=4),
    st.one_of(st.just(REASON), lists.map(lambda pids: (gpu(*pids),))),
    st.sampled_from([INITIAL_PID_NAMESPACE] * 5 + ["pid:[4026532000]"]),
    st.sampled_from([frozenset(), frozenset(), frozenset({1001})]),
)


def may_be_ended(one, seen: Scan, looks: int) -> bool:
    """The conditions of a proof, written a second time and without the table."""
    home, tie = one.home, one.tie
    in_job = isinstance(home, Home) and home.kind is HomeKind.JOB and not home.adopted
    said = seen.jobs.get(tie.key) if tie else seen.jobs.get(home.id) if in_job else None
    if said is None or said.state is not JobState.ENDED:
        return False
    grace_s = 150.0 if said.grace_s is None else said.grace_s
    ended_long_ago = grace_s == 0 or (said.ended_unix_s is not None and NOW - said.ended_unix_s >= grace_s)
    claimed = one.environment.job if isinstance(one.environment, Environment) else None
    elsewhere = (
        tie is None and claimed not in {None, said.job} and (claimed not in seen.jobs or seen.jobs[claimed].state is not JobState.ENDED)
    )
    return (
        ended_long_ago
        and looks >= 2
        and isinstance(one.devices, tuple)
        and len(one.devices) > 0
        and seen.pid_namespace == INITIAL_PID_NAMESPACE
        and one.id.pid not in {1, 400, 500}
        and not one.kernel_thread
        and one.state != "D"
        and one.blocked_threads == 0
        and not elsewhere
        and isinstance(one.environment, Environment)
        and said.uid in {None, one.uid}
        and "mps" not in str(one.exe)
    )


@settings(max_examples=600, deadline=None)
@given(scans, st.integers(1, 4))
def test_nobody_unproven_carries_a_proof(seen: Scan, looks: int) -> None:
    judged = after(seen, scans=looks)
    for one in judged:
        assert (one.proof is not None) == (one.verdict is Verdict.ORPHAN)
        if one.proof is not None:
            assert one.process is not None
            assert may_be_ended(one.process, seen, looks), one.why
            assert one.proof.process == one.process.id
        assert one.why
    assert {orphan.process for orphan in plan(judged, Policy()).orphans} <= {one.process.id for one in judged if one.proof and one.process}


@settings(max_examples=200, deadline=None)
@given(scans, st.sampled_from(["home", "devices", "environment"]))
def test_seeing_less_never_makes_an_orphan(seen: Scan, hidden: str) -> None:
    proven = {one.process.id for one in after(seen) if one.proof and one.process}
    less = msgspec.structs.replace(seen, processes=tuple(msgspec.structs.replace(one, **{hidden: REASON}) for one in seen.processes))
    assert {one.process.id for one in after(less) if one.proof and one.process} <= proven
    silent = msgspec.structs.replace(seen, jobs={})
    assert not any(one.proof for one in after(silent))


def test_too_many_to_be_true_ends_nobody() -> None:
    seen = scan(*(process(5000 + number) for number in range(9)), jobs=[word()])
    many = plan(after(seen), Policy())
    assert many.orphans == ()
    assert "9 orphans are proven, more than the 8" in many.alert
    assert len(plan(after(seen), Policy(most=9)).orphans) == 9


def test_a_kill_switch_ends_nobody_and_says_so() -> None:
    stopped = plan(after(scan(process(), jobs=[word()])), Policy(), stopped_by="/run/rankpatrol/no-reap")
    assert stopped.orphans == ()
    assert "/run/rankpatrol/no-reap" in stopped.alert
