"""The judge on virtual time: nothing waits, the events carry their time."""

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

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
    SetAside,
    Suspected,
    TimeoutNears,
)

POLICY = Policy(patience_s=20.0)
STUCK = Diagnosis(
    verdict="hang", cause="rank_blocked", culprit_ranks=(1,), victim_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps"
)
WORKS = Diagnosis(
    verdict="benign_wait", cause="none", awaited_ranks=(1,), victim_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="rank 1 works"
)


class Court:
    """A judge and its clock: two ranks that move until they are told to stand."""

    def __init__(self, policy=POLICY, joined=True):
        self.policy, self.joined = policy, joined
        self.at_s, self.ticks, self.moving, self.extra = 0.0, 0, {0, 1}, {}
        self.counts = {0: 0, 1: 0}
        self.found = []
        self.answer, self.answers = STUCK, None
        self.state, _ = step(JudgeState(), AttemptBegan(at_s=0.0, attempt=0, world_size=2), policy)

    def run(self, seconds):
        """Pass time second by second; every request for a look is answered at once. Returns what was said in that time."""
        said = []
        for _ in range(seconds):
            self.at_s += 1.0
            for rank in self.moving:
                self.counts[rank] += 5
            said += self._tell(Observed(at_s=self.at_s, ranks=tuple(self._activity(rank) for rank in (0, 1))))
        self.found += said
        return said

    def _activity(self, rank):
        facts = {"ended": False, "joined": self.joined, "traced": False, "stopped": False, "step": None, "switches": self.counts[rank]}
        facts["main_thread_ticks"] = self.counts[rank]
        return RankActivity(rank=rank, **{**facts, **self.extra.get(rank, {})})

    def _tell(self, event):
        self.state, findings = step(self.state, event, self.policy)
        said = [(self.at_s, finding) for finding in findings]
        for finding in findings:
            if isinstance(finding, LookCloser) and self.answer is not None:
                said += self._tell(Looked(at_s=self.at_s, diagnosis=next(self.answers) if self.answers else self.answer))
        return said


def first(said, kind):
    return next((at_s for at_s, finding in said if isinstance(finding, kind)), None)


def test_nothing_is_said_of_a_training_that_moves():
    assert Court().run(3600) == []


class Marked(Court):
    """All ranks have a probe, and take five steps a second."""

    def _activity(self, rank):
        marked = msgspec.structs.replace(super()._activity(rank), marked_steps=self.counts[rank])
        return msgspec.structs.replace(marked, phase="train_step")


def test_a_suspect_is_named_within_five_seconds_where_probes_show_quick_steps():
    court = Marked()
    court.run(30)
    court.moving = set()
    assert first(court.run(15), Suspected) - 30 <= 4


def test_slow_steps_are_given_their_time():
    court = Marked()
    for _ in range(20):
        court.moving = {0, 1}
        court.run(1)
        court.moving = set()
        assert court.run(4) == []


def test_a_group_whose_time_out_comes_before_patience_is_told_of_in_time():
    court = Court(Policy(patience_s=180.0))
    court.extra = {0: {"group_timeout_s": 60.0}, 1: {"group_timeout_s": 60.0}}
    court.run(10)
    court.moving = set()
    said = court.run(60)
    assert 10 + 60 - 20 <= first(said, TimeoutNears) <= 10 + 60 - 10
    assert sum(isinstance(finding, TimeoutNears) for _, finding in said) == 1
    assert first(said, Judged) is None


def test_a_benign_wait_hears_of_a_short_time_out_before_its_alert_would_be_due():
    court = Court()
    court.extra = {0: {"group_timeout_s": 20.0}}
    court.run(10)
    court.moving, court.answer = set(), WORKS
    said = court.run(20)
    assert first(said, Suspected) == first(said, TimeoutNears) < 10 + 20


def test_a_time_out_far_away_says_nothing():
    court = Court()
    court.extra = {0: {"group_timeout_s": 1800.0}}
    court.run(10)
    court.moving = set()
    assert first(court.run(60), TimeoutNears) is None


def test_a_probe_in_some_ranks_only_changes_nothing():
    court = Marked()
    court.extra = {1: {}}
    court._activity = lambda rank: Court._activity(court, rank) if rank == 1 else Marked._activity(court, rank)
    court.run(30)
    court.moving = set()
    assert first(court.run(15), Suspected) - 30 > 5


def test_looks_that_could_not_tell_yet_are_forgiven_once_all_of_them_prove_quiet():
    court = Court()
    court.run(10)
    court.moving = set()
    court.answer = Diagnosis(verdict="undetermined", cause="unknown", victim_ranks=(0,), sentence="too few looks")
    court.run(12)
    began_s = court.at_s
    court.answer = msgspec.structs.replace(STUCK, cause="spin", quiet_since_mono_s=15.0)
    assert first(court.run(30), Judged) <= 15.0 + POLICY.patience_s + POLICY.watch_every_s
    assert began_s + POLICY.patience_s > 15.0 + POLICY.patience_s + POLICY.watch_every_s


def test_a_suspect_is_named_within_ten_seconds_of_the_onset():
    court = Court()
    court.run(30)
    court.moving = set()
    said = court.run(15)
    assert first(said, Suspected) - 30 <= 10
    onset = next(finding.onset_s for _, finding in said if isinstance(finding, Suspected))
    assert onset == 30.0


def test_a_verdict_waits_for_patience_and_comes_soon_after():
    court = Court()
    court.run(30)
    court.moving = set()
    judged_at_s = first(court.run(60), Judged)
    assert 50.0 <= judged_at_s <= 56.0


def test_a_verdict_comes_in_the_round_in_which_patience_is_over():
    for patience_s in range(15, 31):
        court = Court(Policy(patience_s=float(patience_s)))
        court.run(10)
        court.moving = set()
        assert first(court.run(40), Judged) == 10 + patience_s


def test_there_is_one_suspicion_and_one_verdict_however_long_it_lasts():
    court = Court()
    court.run(10)
    court.moving = set()
    court.run(600)
    kinds = [type(finding) for _, finding in court.found]
    assert (kinds.count(Suspected), kinds.count(Judged)) == (1, 1)


def test_what_is_proved_is_judged_without_patience():
    court = Court(Policy(patience_s=180.0))
    court.answer = msgspec.structs.replace(STUCK, certainty=Certainty.PROVED)
    court.run(10)
    court.moving = set()
    assert first(court.run(20), Judged) is not None


def test_what_is_only_suspected_is_never_judged():
    court = Court()
    court.answer = msgspec.structs.replace(STUCK, certainty=Certainty.SUSPECTED)
    court.run(10)
    court.moving = set()
    said = court.run(3600)
    assert first(said, Suspected) is not None
    assert first(said, Judged) is None


def test_an_awaited_rank_that_works_is_named_and_never_judged():
    court = Court()
    court.answer = WORKS
    court.run(10)
    court.moving = set()
    said = court.run(3600)
    assert first(said, Suspected) is not None
    assert first(said, Judged) is None


def test_patience_starts_again_when_the_awaited_rank_worked():
    court = Court()
    court.answer = WORKS
    court.run(10)
    court.moving = set()
    court.run(60)
    court.answer = STUCK
    judged_at_s = first(court.run(60), Judged)
    assert judged_at_s >= 70.0 - 5.0 + 20.0


def test_movement_ends_the_suspicion():
    court = Court()
    court.run(10)
    court.moving = set()
    court.run(10)
    court.moving = {0, 1}
    assert first(court.run(5), Resumed) is not None


def test_a_silence_that_ended_by_itself_teaches_what_to_expect_and_is_told_once_a_phase():
    court = Court()
    court.run(10)
    court.moving = set()
    court.run(20)
    court.moving = {0, 1}
    court.run(5)
    assert court.state.learned_s == {"first_step": 21.0}
    court.moving, began_s = set(), court.at_s
    said = court.run(60)
    again = next(finding for _, finding in said if isinstance(finding, Suspected))
    assert again.quiet
    assert first(said, Suspected) - began_s >= 1.5 * 21.0
    assert first(said, Judged) - began_s >= 1.5 * 21.0


def test_a_rank_that_works_is_worth_an_alert_only_when_it_takes_long():
    court = Court()
    court.answer = WORKS
    court.run(10)
    court.moving = set()
    assert 40.0 <= first(court.run(60), Suspected) <= 46.0


def test_a_silence_that_nobody_can_explain_is_told_after_patience_and_never_judged():
    court = Court()
    court.answer = Diagnosis(verdict="undetermined", cause="unknown", sentence="no stack could be read")
    court.run(10)
    court.moving = set()
    said = court.run(300)
    assert 30.0 <= first(said, Suspected) <= 36.0
    assert next(finding.onset_s for _, finding in said if isinstance(finding, Suspected)) == 10.0
    assert first(said, Judged) is None


def test_a_quiet_checkpoint_gets_twice_the_patience():
    court = Court()
    court.answer = msgspec.structs.replace(STUCK, phase="checkpoint")
    court.run(10)
    court.moving = set()
    assert 50.0 <= first(court.run(120), Judged) <= 56.0


def test_what_the_job_taught_is_kept_over_attempts():
    state, _ = step(JudgeState(learned_s={"train_step": 30.0}), AttemptBegan(at_s=60.0, attempt=1, world_size=2), POLICY)
    assert state.learned_s == {"train_step": 30.0}


def test_a_look_that_comes_after_the_movement_is_forgotten():
    court = Court()
    court.run(10)
    state, said = step(court.state, Looked(at_s=10.5, diagnosis=STUCK), POLICY)
    assert (state, said) == (court.state, ())


def test_looks_that_disagree_name_nobody():
    court = Court()
    court.run(10)
    open_question = Diagnosis(verdict="undetermined", cause="unknown", sentence="?")
    court.moving, court.answers = set(), itertools.cycle((STUCK, open_question))
    said = court.run(40)
    assert first(said, Suspected) is None


def test_a_loader_wait_that_wakes_every_five_seconds_is_no_movement():
    """As measured: each time the poll of torch's loader ends there are one or two switches, and now and then a tick is charged."""
    court = Court()
    court.run(10)
    court.moving = set()
    woken, said = 50, []
    for number in range(6):
        woken += 2
        court.extra = {1: {"switches": woken, "main_thread_ticks": 50 + number}}
        said += court.run(5)
    assert first(said, Judged) - 10.0 <= POLICY.patience_s + 6.0
    assert first(said, Resumed) is None


def test_steps_in_the_log_are_progress_though_one_rank_stands():
    court = Court()
    court.run(10)
    court.moving = {0}
    said = []
    for number in range(20):
        court.extra = {0: {"step": number}}
        said += court.run(3)
    assert said == []


def test_a_debugger_or_an_ended_rank_or_a_suspended_job_pauses_the_judgement():
    for extra in ({1: {"traced": True}}, {1: {"ended": True, "failed": True}}, {0: {"stopped": True}, 1: {"stopped": True}}):
        court = Court()
        court.run(10)
        court.moving, court.extra = set(), extra
        assert court.run(600) == []


def test_the_time_under_a_debugger_counts_against_nobody():
    court = Court()
    court.run(10)
    court.moving, court.extra = set(), {1: {"traced": True}}
    court.run(600)
    court.extra = {}
    assert first(court.run(60), Judged) >= 610.0 + POLICY.patience_s


def test_ranks_that_end_do_not_count_as_movement():
    court = Court()
    court.run(10)
    court.moving = set()
    court.run(12)
    court.extra = {0: {"ended": True, "failed": True}}
    assert court.run(30) == []


def test_a_start_may_take_a_minute():
    court = Court(joined=False)
    court.run(5)
    court.moving = set()
    assert court.run(50) == []
    assert first(court.run(20), LookCloser) is not None


def test_a_new_attempt_forgets_everything():
    court = Court()
    court.run(10)
    court.moving = set()
    court.run(30)
    state, said = step(court.state, AttemptBegan(at_s=60.0, attempt=1, world_size=2), POLICY)
    assert said == ()
    assert (state.seen, state.suspected, state.judged, state.agreeing) == ({}, False, False, ())


@given(st.lists(st.sampled_from([{0, 1}, {0}, {1}, set()]), max_size=60), st.sampled_from([STUCK, WORKS]))
def test_no_verdict_comes_before_patience_whatever_the_ranks_do(moves, answer):
    court = Court()
    court.answer = answer
    still_s = 0
    for moving in moves:
        court.moving = moving
        said = court.run(1)
        still_s = 0 if 1 in moving else still_s + 1
        if first(said, Judged) is not None:
            assert still_s >= POLICY.patience_s


def test_a_judgement_that_was_set_aside_is_made_anew_from_new_looks_and_people_are_not_alerted_again():
    court = Court()
    court.run(30)
    court.moving = set()
    said = court.run(40)
    assert first(said, Judged) is not None
    assert first(court.run(20), Judged) is None, "one judgement is enough"
    court._tell(SetAside(at_s=court.at_s))
    said = court.run(15)
    assert first(said, Judged) is not None
    assert [finding.quiet for _, finding in said if isinstance(finding, Suspected)] == [True]
