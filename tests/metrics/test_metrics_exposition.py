"""What a scraper sees of a job's state and events."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from readings import CHECKPOINTS, EVENTS, HANG, INCIDENT, NOW, RANKS, full, names, reading, samples, value

from rankpatrol.metrics.collector import exposition, registry_of
from rankpatrol.metrics.records import JobNow, Reading
from rankpatrol.metrics.table import METRICS, PREFIX
from rankpatrol.metrics.tally import total

ALLOWED = {"job_id", "node", "rank", "policy", "scheduler_job", "version", "reason", "phase", "state", "verdict", "cause", "certainty"}
ALLOWED |= {"stage", "how", "action", "result", "part"}


def test_a_healthy_job_is_told_rank_by_rank():
    found = samples(reading(EVENTS))
    assert value(found, "job_info", job_id="train", node="n0", policy="recover", scheduler_job="8123", version="1.2") == 1
    assert value(found, "job_ranks", job_id="train", node="n0") == 4
    assert value(found, "rank_state", rank="3", node="n1", state="training") == 1
    assert value(found, "rank_phase", rank="0", node="n0", phase="train_step") == 1
    assert value(found, "rank_still_seconds", rank="2") == 0.5
    assert value(found, "job_steps") == 41
    assert value(found, "job_progress_timestamp_seconds") == NOW
    assert value(found, "agent_cpu_seconds_total") == 12.5
    assert value(found, "agent_round_timestamp_seconds") == NOW
    assert not any("incidents_open" in name or "suspect" in name for name in names(found))


def test_an_open_verdict_names_its_words_and_its_ranks():
    found = samples(reading(EVENTS, incident=INCIDENT))
    assert value(found, "incidents_open", verdict="hang", cause="rank_blocked", certainty="supported", stage="judged") == 1
    assert value(found, "rank_suspect", rank="3", node="n1") == 1
    assert value(found, "incident_onset_timestamp_seconds") == NOW - 200


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"stage": "closed"}, False),
        ({"stage": "alerted", "quiet": True}, False),
        ({"stage": "alerted", "quiet": False}, True),
        ({"stage": "judged", "quiet": True}, True),
    ],
)
def test_what_people_are_not_told_of_rings_no_bell(change, seen):
    found = names(samples(reading(incident={**INCIDENT, **change})))
    assert ("rankpatrol_incidents_open" in found, "rankpatrol_rank_suspect" in found) == (seen, seen)


def test_incidents_with_the_same_words_are_counted():
    aside = {**INCIDENT, "stage": "alerted", "diagnosis": {**HANG, "verdict": "slow", "culprit_ranks": None}}
    found = samples(reading(incident=INCIDENT, asides=[aside, aside]))
    assert value(found, "incidents_open", verdict="slow") == 2
    assert value(found, "incidents_open", verdict="hang") == 1


def test_what_the_events_add_up_to():
    found = samples(reading(EVENTS))
    assert value(found, "attempts_total") == 2
    assert value(found, "attempts_ended_total", reason="ended_by_rankpatrol") == 1
    assert value(found, "attempts_ended_total", reason="failed") == 0, "a rate needs a first value"
    assert value(found, "incidents_closed_total", how="ended") == 1
    assert value(found, "incidents_closed_total", how="recovered") == 0
    assert value(found, "verdicts_total", verdict="hang") == 1
    assert value(found, "alerts_total") == 1
    assert value(found, "actions_total", action="end_attempt", result="done") == 1
    assert (value(found, "bundle_seal_seconds_count"), value(found, "bundle_seal_seconds_sum")) == (1, 2.5)
    assert value(found, "seals_failed_total") == 1
    assert value(found, "brake_failures") == 1
    assert value(found, "job_steps_per_second") == pytest.approx(1.0)


def test_no_checkpoints_wanted_is_not_the_same_as_none_known():
    assert not any("checkpoint" in name for name in names(samples(reading())))
    none = samples(reading(checkpoints_wanted=True, checkpoints={**CHECKPOINTS, "newest_good": None}))
    assert (value(none, "checkpoint_known"), value(none, "checkpoints_rejected")) == (0, 1)
    assert "rankpatrol_checkpoint_timestamp_seconds" not in names(none)
    unread = names(samples(reading(checkpoints_wanted=True)))
    assert not any("checkpoint" in name for name in unread), "nobody could look: nobody knows"
    good = samples(reading(checkpoints_wanted=True, checkpoints=CHECKPOINTS))
    assert (value(good, "checkpoint_known"), value(good, "checkpoint_steps"), value(good, "checkpoint_timestamp_seconds")) == (
        1,
        30,
        NOW - 600,
    )


def test_what_is_not_known_has_no_sample():
    bare = [{"rank": 0, "node": "n0", "state": None, "phase": None, "still_for_s": None, "step": None}]
    found = names(samples(reading(ranks=bare, step=None, phase=None, attempt=None, world_size=None, agent=None)))
    absent = {
        "rank_state",
        "rank_phase",
        "rank_still_seconds",
        "rank_steps",
        "job_steps",
        "job_phase",
        "agent_resident_bytes",
        "goodput_ratio",
    }
    assert not {PREFIX + name for name in absent} & found
    assert "rankpatrol_job_steps_per_second" not in found


def test_a_job_that_is_over_has_no_phase_no_pace_and_no_open_incident():
    found = samples(reading(EVENTS, ended="ordered by SIGTERM", incident=INCIDENT))
    assert value(found, "job_ended", reason="ordered") == 1
    assert not {"rankpatrol_job_phase", "rankpatrol_job_steps_per_second", "rankpatrol_incidents_open"} & names(found)


def test_many_nodes_are_told_side_by_side():
    second = reading(ranks=[{**RANKS[0], "rank": 8, "node": "n9"}], agent={**msgspec.to_builtins(full()[0].now.agent), "node": "n9"})
    found = samples(reading(), second)
    assert value(found, "job_ranks", node="n0") == value(found, "job_ranks", node="n9") == 4
    assert value(found, "rank_steps", rank="8", node="n9") == 40


def test_a_node_that_has_fallen_silent_is_told_and_one_that_was_never_heard_is_not_known():
    found = samples(full()[0])
    assert {dict(labels)["node"]: seconds for (name, labels), seconds in found.items() if name == "rankpatrol_node_silent_seconds"} == {
        "n1": 70
    }


def test_a_reading_can_be_sent_to_whoever_serves_many():
    for each in full():
        for encode, decode in ((msgspec.json.encode, msgspec.json.decode), (msgspec.msgpack.encode, msgspec.msgpack.decode)):
            assert exposition([decode(encode(each), type=Reading)]) == exposition([each])


def test_every_metric_has_a_sample_somewhere_and_only_labels_of_the_list():
    found = samples(*full())
    told = {name.removesuffix("_count").removesuffix("_sum") for name in names(found)}
    assert told == {PREFIX + row.name for row in METRICS}
    assert {label for _, labels in found for label, _ in labels} <= ALLOWED
    assert len({row.name for row in METRICS}) == len(METRICS)


def test_registering_asks_for_no_reading():
    registry_of(lambda: pytest.fail("asked"))


def test_labels_that_a_foreign_name_spoils_do_not_spoil_the_rest():
    name = 'a"b\\c\nd \udce9é'
    found = samples(reading(job=name.encode(errors="replace").decode(), ranks=[{**RANKS[0], "node": 'n"\n'}]))
    assert value(found, "rank_steps", node='n"\n') == 40


@pytest.mark.parametrize("step", [10**400, -5, 1.5])
def test_a_number_that_no_machine_word_holds_is_left_out_or_told_as_it_is(step):
    made = reading()
    odd = msgspec.structs.replace(made, now=msgspec.structs.replace(made.now, step=step))
    assert ("rankpatrol_job_steps" in names(samples(odd))) == (step != 10**400)


WORDS = st.none() | st.booleans() | st.integers() | st.floats() | st.text('a"\\\né', max_size=50) | st.lists(st.integers(), max_size=2)
KEYS = ("kind", "attempt", "step", "seconds", "verdict", "onset_unix_s", "what", "done", "how", "reason", "at_unix_s")
KINDS = st.sampled_from(["progress", "verdict", "action", "bundle_sealed", "incident_closed", "attempt_ended", "attempt_started", "alert"])


@given(st.lists(st.fixed_dictionaries({"kind": KINDS}, optional=dict.fromkeys(KEYS[1:], WORDS)), max_size=20))
def test_whatever_stands_in_the_events_the_exposition_can_be_read(events):
    made = Reading(now=JobNow(at_unix_s=NOW), tally=total(events))
    assert samples(made)


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(0, 500)), max_size=30), st.floats(0, 500))
def test_a_pace_is_never_negative_and_its_memory_is_bounded(steps, now):
    told = [{"kind": "progress", "at_unix_s": at, "step": step} for at, step in steps]
    made = msgspec.structs.replace(reading(), tally=total(told))
    made = msgspec.structs.replace(made, now=msgspec.structs.replace(made.now, at_unix_s=now))
    pace = [number for (name, _), number in samples(made).items() if name == "rankpatrol_job_steps_per_second"]
    assert all(number >= 0 for number in pace)
