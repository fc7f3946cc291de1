"""How the nodes of one job directory find its hub, and whom they do not believe."""

import os
import stat

import pytest

from clocks import FakeClock
from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Missing
from rankpatrol.exchange.address import Address, parse_address
from rankpatrol.exchange.rendezvous import NAME, RendezvousRefused, announce, read_rendezvous, take_back, wait_for_hub

HUB = parse_address("nats://hush@n0:4222")


def test_what_the_hub_says_is_found(tmp_path):
    clock = FakeClock()
    announce(tmp_path, "run-1", "n0", HUB, clock)
    found = wait_for_hub(tmp_path, "run-1", clock, 5)
    assert (found.address(), found.hub, found.started_unix_s) == (HUB, "n0", clock.unix_s())


@pytest.mark.parametrize(("host", "told"), [("0.0.0.0", "n0"), ("::", "n0"), ("10.0.0.7", "10.0.0.7")])
def test_a_broker_on_all_addresses_is_announced_under_its_nodes_name(tmp_path, host, told):
    announce(tmp_path, "run-1", "n0", Address(scheme="nats", host=host, port=5, token="hush"), FakeClock())
    assert wait_for_hub(tmp_path, "run-1", FakeClock(), 5).address() == Address(scheme="nats", host=told, port=5, token="hush")


def test_the_file_is_whole_and_its_owner_alone_reads_it(tmp_path):
    old = os.umask(0)
    try:
        announce(tmp_path, "run-1", "n0", HUB, FakeClock())
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


class LateHub(FakeClock):
    """Time in which a hub says where it is, `after_s` from now."""

    def __init__(self, job_dir, after_s, run="run-2"):
        super().__init__()
        self._job_dir, self._at, self._run = job_dir, self.mono_s() + after_s, run

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.mono_s() >= self._at:
            announce(self._job_dir, self._run, "n7", HUB, self)


def test_a_hub_that_comes_later_is_waited_for(tmp_path):
    clock = LateHub(tmp_path, after_s=40)
    assert wait_for_hub(tmp_path, "run-2", clock, 60).hub == "n7"
    assert clock.mono_s() < 1042


def test_an_earlier_run_of_the_same_directory_is_not_this_one(tmp_path):
    announce(tmp_path, "run-1", "n0", HUB, FakeClock())
    assert wait_for_hub(tmp_path, "run-2", LateHub(tmp_path, after_s=10), 60).hub == "n7"
    answer = wait_for_hub(tmp_path, "run-3", FakeClock(), 20)
    assert isinstance(answer, Missing)
    assert "only an earlier run" in answer.reason


def test_a_hub_that_never_comes_is_missing_at_the_deadline(tmp_path):
    clock = FakeClock()
    answer = wait_for_hub(tmp_path, "run-1", clock, 30)
    assert isinstance(answer, Missing)
    assert "the first node has not said" in answer.reason
    assert clock.mono_s() == pytest.approx(1030)
    assert "hush" not in answer.reason


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622, 0o601])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path, mode):
    announce(tmp_path, "run-1", "n0", HUB, FakeClock())
    (tmp_path / NAME).chmod(mode)
    with pytest.raises(RendezvousRefused, match="by others"):
        wait_for_hub(tmp_path, "run-1", FakeClock(), 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused(tmp_path):
    announce(tmp_path, "run-1", "n0", HUB, FakeClock())
    os.chown(tmp_path / NAME, 12345, 12345)
    with pytest.raises(RendezvousRefused, match="belongs to user 12345"):
        wait_for_hub(tmp_path, "run-1", FakeClock(), 5)


def test_a_link_to_another_file_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    announce(tmp_path / "real", "run-1", "n0", HUB, FakeClock())
    (tmp_path / NAME).symlink_to(tmp_path / "real" / NAME)
    with pytest.raises(BadInput):
        read_rendezvous(tmp_path)


def test_a_pipe_or_a_folder_in_its_place_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / NAME, 0o600)
    with pytest.raises(RendezvousRefused, match="no regular file"):
        read_rendezvous(tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir(0o700)
    with pytest.raises(RendezvousRefused, match="no regular file"):
        read_rendezvous(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": 3}', b"x" * 100_000])
def test_what_no_hub_writes_is_refused(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    (tmp_path / NAME).chmod(0o600)
    with pytest.raises(BadInput, match="not what a hub writes"):
        wait_for_hub(tmp_path, "run-1", FakeClock(), 5)


def test_a_hub_takes_back_its_own_word_alone(tmp_path):
    announce(tmp_path, "run-1", "n0", HUB, FakeClock())
    take_back(tmp_path, "run-2")
    assert (tmp_path / NAME).exists()
    take_back(tmp_path, "run-1")
    assert not (tmp_path / NAME).exists()
    take_back(tmp_path, "run-1")
    take_back(tmp_path / "gone", "run-1")


def test_a_directory_that_refuses_is_told(tmp_path):
    with pytest.raises(BadInput, match="cannot be told"):
        announce(tmp_path / "gone", "run-1", "n0", HUB, FakeClock())
