"""How long a crash is looked at before somebody is named."""

import msgspec
import pytest

import scenes
from clocks import FakeClock
from rankpatrol.agent.crash_watch import look_at_crash
from rankpatrol.agent.roster import Attempt
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import LogSample

CLOSED = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 96, in train',
    "RuntimeError: Connection closed by peer [::1]:9",
)


def sample(number, status, *tail):
    seen = scenes.rank(number, Missing("gone"), Missing("gone"))
    return msgspec.structs.replace(seen, exit_status=status, ended_unix_s=1.8e9 if status else None, log=LogSample(9, tail, step=1))


class Looks:
    """Stands for the roster and the eyes: one look after another, the last for ever."""

    def __init__(self, *looks, gone=()):
        self.looks, self.taken = list(looks), 0
        self.kills_elsewhere = {}
        self.attempt = Attempt(number=0, places=(), exits={}, gone=frozenset(gone))

    def look(self, *, full):
        assert full
        self.taken += 1
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def keep_last(self, seen):
        pass

    def read(self, number):
        return self.attempt


ECHO, UNTOLD = sample(0, 1, *CLOSED), scenes.snapshot(sample(0, 1, *CLOSED), sample(1, None))


def named(looks):
    found = look_at_crash(looks, looks, FakeClock())
    return found.cause, found.culprit_ranks


@pytest.mark.parametrize(("status", "tail", "expected"), [(-11, (), ("sigsegv", (1,))), (1, CLOSED, ("unknown", None))])
def test_a_rank_whose_shim_lives_is_not_called_killed_before_its_exit_is_told(status, tail, expected):
    assert named(Looks(UNTOLD, UNTOLD, scenes.snapshot(ECHO, sample(1, status, *tail)))) == expected


def test_a_rank_that_went_with_its_shim_is_named_at_once():
    looks = Looks(UNTOLD, gone={1})
    assert named(looks) == ("sigkill", (1,))
    assert looks.taken == 1


def test_a_rank_of_which_no_word_ever_comes_is_named_after_a_while():
    looks = Looks(UNTOLD)
    assert named(looks) == ("sigkill", (1,))
    assert 2 < looks.taken < 40
