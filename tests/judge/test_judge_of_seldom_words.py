"""The judge of ranks that are heard of every few seconds: what was not told anew is no observation, and a stall is seen all the same."""

import random

import pytest

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.judge.judge import step
from rankpatrol.judge.records import (
    AttemptBegan,
    Judged,
    JudgeState,
    LookCloser,
    Looked,
    Observed,
    Policy,
    RankActivity,
    Resumed,
    Suspected,
)

EVERY_S = 5.0
STUCK = Diagnosis(
    verdict="hang", cause="rank_blocked", culprit_ranks=(1,), victim_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps"
)


class Court:
    """Ranks that each tell their counters every 5 s, each in its own moment, and a judge that thinks once a second."""

    def __init__(self, seed=0, *, ranks=4, steps=True, every_s=EVERY_S):
        self.dice = random.Random(seed)
        self.every_s, self.steps = every_s, steps
        self.at_s = 0.0
        self.due_s = {rank: self.dice.uniform(0.0, every_s) for rank in range(ranks)}
        self.told = {}
        self.frozen_at_s = None
        # By the second: a rank that trains, and one that waits and polls.
        self.per_s, self.polls_per_s = 50.0, 1.0
        self.state, _ = step(JudgeState(), AttemptBegan(at_s=0.0, attempt=0, world_size=ranks), Policy(patience_s=30.0))

    def run(self, seconds, silent=()):
        said = []
        for _ in range(int(seconds)):
            self.at_s += 1.0
            for rank, due_s in self.due_s.items():
                if due_s <= self.at_s and rank not in silent:
                    self.told[rank] = self._activity(rank, due_s)
                    self.due_s[rank] = due_s + self.every_s + self.dice.uniform(-0.3, 0.7)
            said += self._tell(Observed(at_s=self.at_s, ranks=tuple(self.told.values())))
        return said

    def _activity(self, rank, seen_at_s):
        worked_s = seen_at_s if self.frozen_at_s is None else min(seen_at_s, self.frozen_at_s)
        waited_s = seen_at_s - worked_s
        return RankActivity(
            rank=rank,
            ended=False,
            joined=True,
            traced=False,
            stopped=False,
            main_thread_ticks=int(self.per_s * worked_s),
            switches=int(self.per_s * worked_s + self.polls_per_s * waited_s),
            step=int(5 * worked_s) if self.steps and rank == 0 else None,
            seen_at_s=seen_at_s,
        )

    def _tell(self, event):
        self.state, findings = step(self.state, event, Policy(patience_s=30.0))
        said = [(self.at_s, finding) for finding in findings]
        for finding in findings:
            if isinstance(finding, LookCloser):
                said += self._tell(Looked(at_s=self.at_s, diagnosis=STUCK))
        return said


def first(said, kind):
    return next((at_s for at_s, finding in said if isinstance(finding, kind)), None)


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_odd_about_a_healthy_job_that_is_heard_every_five_seconds(seed, steps):
    assert Court(seed, steps=steps).run(900) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_job_of_few_slow_steps_is_not_odd_either(seed):
    court = Court(seed)
    court.per_s = 4.0  # 4 % of a core, four waits a second: little, and more than a poll
    assert court.run(900) == []


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_frozen_job_is_named_within_fifteen_seconds(seed, steps):
    court = Court(seed, steps=steps)
    assert court.run(120) == []
    court.frozen_at_s = court.at_s
    said = court.run(60)
    assert first(said, Suspected) - 120 <= 15.0
    assert first(said, Judged) is not None
    assert first(said, Resumed) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_stuck_rank_that_polls_twice_a_second_does_not_stir_by_that(seed):
    court = Court(seed)
    court.polls_per_s = 2.0
    court.run(60)
    court.frozen_at_s = court.at_s
    assert first(court.run(30), Suspected) is not None


def test_a_word_that_comes_late_is_no_stillness_once_it_is_here():
    court = Court()
    court.run(60)
    court.run(10, silent=(1,))
    said = court.run(60)
    assert [finding for _, finding in said if isinstance(finding, Suspected | LookCloser)] == []


def test_words_of_the_same_round_are_judged_as_ever():
    """Without a time of its own an activity is of the round in which it is told."""
    court = Court()
    for second in range(1, 11):
        fields = {"ended": False, "joined": True, "traced": False, "stopped": False, "step": None}
        ranks = tuple(RankActivity(rank=rank, main_thread_ticks=5, switches=5, **fields) for rank in range(4))
        court.at_s = float(second)
        said = court._tell(Observed(at_s=court.at_s, ranks=ranks))
        if said:
            break
    assert second == 6, "five seconds after the first"
