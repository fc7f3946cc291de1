"""One actor at a time, whoever comes, dies, sleeps or is late."""

import multiprocessing

import msgspec
import pytest

from clocks import FakeClock
from rankpatrol.core.records import ProcessId
from rankpatrol.system.lease import Holder, LeaseTaken, standing, take_lease
from rankpatrol.system.process import boot_id


def test_a_lease_keeps_others_out_until_it_is_given_back(tmp_path):
    clock = FakeClock()
    lease = take_lease(tmp_path / "lease", "an agent", clock, lasts_s=60)
    assert lease.why_not() == ""
    with pytest.raises(LeaseTaken, match=r"an agent on .* acts on this job already"):
        take_lease(tmp_path / "lease", "a person", clock, lasts_s=60)
    lease.give_back()
    assert take_lease(tmp_path / "lease", "a person", clock, lasts_s=60).why_not() == ""


def test_whoever_only_asks_takes_nothing(tmp_path):
    clock, folder = FakeClock(), tmp_path / "lease"
    assert standing(folder, clock) == ""
    assert not folder.exists()
    lease = take_lease(folder, "a person", clock, lasts_s=60)
    assert standing(folder, clock).startswith("a person on ")
    lease.give_back()
    assert standing(folder, clock) == ""


def test_one_that_ran_out_ends_its_holders_right_before_others_may_begin(tmp_path):
    clock = FakeClock()
    lease = take_lease(tmp_path, "an agent", clock, lasts_s=60)
    clock.advance(61)
    assert "run out" in lease.why_not()
    with pytest.raises(LeaseTaken):
        take_lease(tmp_path, "a person", clock, lasts_s=60)
    clock.advance(30)
    take_lease(tmp_path, "a person", clock, lasts_s=60)


def test_who_was_followed_by_another_may_not_act_any_more(tmp_path):
    clock, fast = FakeClock(), FakeClock(unix_s=1.8e9 + 3600)
    lease = take_lease(tmp_path, "an agent", clock, lasts_s=600)
    take_lease(tmp_path, "one whose clock is far ahead", fast, lasts_s=60)
    assert "taken over" in lease.why_not()


@pytest.mark.parametrize(("boot", "free"), [(boot_id(), True), ("another-boot", False)])
def test_a_holder_that_is_gone_keeps_nobody_out_where_that_can_be_seen(tmp_path, boot, free):
    clock = FakeClock()
    take_lease(tmp_path, "an agent", clock, lasts_s=60)
    holder = msgspec.json.decode((tmp_path / "1.json").read_bytes(), type=Holder)
    gone = msgspec.structs.replace(holder, process=ProcessId(boot, 2**22 + 1, 1))
    (tmp_path / "1.json").write_bytes(msgspec.json.encode(gone))
    if free:
        take_lease(tmp_path, "a person", clock, lasts_s=60)
    else:
        with pytest.raises(LeaseTaken):
            take_lease(tmp_path, "a person", clock, lasts_s=60)


def test_a_holder_of_another_pid_namespace_is_not_called_gone(tmp_path):
    clock = FakeClock()
    take_lease(tmp_path, "an agent", clock, lasts_s=60)
    holder = msgspec.json.decode((tmp_path / "1.json").read_bytes(), type=Holder)
    elsewhere = msgspec.structs.replace(holder, process=ProcessId(boot_id(), 2**22 + 1, 1), pid_namespace="pid:[1]")
    (tmp_path / "1.json").write_bytes(msgspec.json.encode(elsewhere))
    with pytest.raises(LeaseTaken):
        take_lease(tmp_path, "a person", clock, lasts_s=60)


def _try(folder, line):
    line.recv()
    try:
        take_lease(folder, "one of many", FakeClock(), lasts_s=60)
        line.send(True)
    except LeaseTaken:
        line.send(False)
    line.recv()  # alive until all have tried: a holder that is gone would hold nothing


def test_of_many_at_once_one_gets_it(tmp_path):
    context = multiprocessing.get_context("fork")
    lines = [context.Pipe() for _ in range(8)]
    runners = [context.Process(target=_try, args=(tmp_path / "lease", far)) for _, far in lines]
    for runner in runners:
        runner.start()
    for near, _ in lines:
        near.send(None)
    assert sum(near.recv() for near, _ in lines) == 1
    for near, _ in lines:
        near.send(None)
    for runner in runners:
        runner.join(10)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LeaseTaken, match="cannot be written"):
        take_lease(tmp_path / "file" / "lease", "a person", FakeClock(), lasts_s=60)
