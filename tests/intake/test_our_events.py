"""`diagnose` of our own events, of a whole job directory, and of one that was moved."""

import io
import json
import sys

import msgspec
import pytest

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.intake.diagnose import diagnose

STARTED = {"kind": "job_started", "command": ["train.py"], "ranks": 4}
VERDICT = {
    "kind": "verdict",
    "incident": 1,
    "verdict": "hang",
    "cause": "spin",
    "culprit_ranks": [3],
    "awaited_ranks": None,
    "certainty": "supported",
    "sentence": "rank 3 spins",
}
ALERT = {**VERDICT, "kind": "alert", "why": "w", "suspect_ranks": [3]}
SEALED = {"kind": "bundle_sealed", "incident": 1, "path": "/old/place/incidents/1", "seconds": 1.0}
ENDED = {"kind": "job_ended", "exit_code": 0, "reason": "finished"}
AFTER = [
    SEALED,
    {"kind": "action", "incident": 1, "what": "end_attempt", "done": None},
    {"kind": "action", "incident": 1, "what": "end_attempt", "done": True},
    {"kind": "incident_closed", "incident": 1, "how": "ended"},
    {"kind": "attempt_started", "attempt": 1, "ranks": {}},
    {"kind": "resumed", "attempt": 1, "checkpoint": "/ckpt/step-40.pt", "step": 40},
    {"kind": "progress", "attempt": 1, "step": 99},
    ENDED,
]


def lines(*events):
    return "".join(json.dumps({"at_unix_s": 1e9 + at, "attempt": 0, **event}) + "\n" for at, event in enumerate(events))


def job(folder, *events):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text("{}")
    (folder / "state.json").write_text("{}")
    (folder / "events.jsonl").write_text(lines(*events))
    return folder


def test_the_last_verdict_and_what_followed_are_told(tmp_path):
    folder = job(tmp_path, STARTED, ALERT, VERDICT, *AFTER)
    for path in (folder / "events.jsonl", folder):
        found = diagnose((str(path),)).diagnosis
        assert (found.verdict, found.cause, found.culprit_ranks, found.certainty) == ("hang", "spin", (3,), Certainty.SUPPORTED)
        assert found.sentence == "rank 3 spins"
        followed = found.reasons_for[-1]
        assert "end attempt done; closed: ended; attempt 1 started; from step-40.pt, step 40" in followed
        assert "the job ended: finished, exit code 0; the last step told was 99" in followed


def test_events_from_a_pipe_say_the_same(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(STARTED, ALERT, VERDICT, *AFTER).encode())))
    found = diagnose(("-",)).diagnosis
    assert (found.verdict, found.sentence) == ("hang", "rank 3 spins")


def test_the_bundle_of_a_moved_job_directory_tells_it_in_full(tmp_path):
    folder = job(tmp_path / "moved", STARTED, VERDICT, *AFTER)
    sealed = folder / "incidents" / "1"
    sealed.mkdir(parents=True)
    (sealed / "manifest.json").write_text("{}")
    told = Diagnosis(verdict="hang", cause="spin", culprit_ranks=(3,), sentence="rank 3 spins", reasons_for=("same frames",))
    (sealed / "diagnosis.json").write_bytes(msgspec.json.encode(told))
    found = diagnose((str(folder),)).diagnosis
    assert found.reasons_for[0] == "same frames"
    assert found.reasons_for[-1].startswith("what followed: evidence sealed")


@pytest.mark.parametrize(
    ("events", "verdict", "words"),
    [
        ([STARTED, ENDED], "healthy", "no incident was told of this job; the job ended: finished"),
        ([STARTED], "undetermined", "had not ended"),
        ([STARTED, {**ENDED, "reason": "failed", "exit_code": 1}], "undetermined", "failed, exit code 1"),
        ([STARTED, ALERT], "undetermined", "suspected, and never judged: rank 3 spins"),
        ([STARTED, {**ALERT, "cause": "loss_nan"}], "healthy", "rank 3 spins"),
        ([STARTED, VERDICT, {"kind": "action_held", "incident": 1, "by": "ada"}], "hang", "rank 3 spins"),
        ([STARTED, {**VERDICT, "culprit_ranks": "all"}, ENDED], "healthy", "no incident was told"),
    ],
)
def test_what_was_not_judged_is_not_made_up(tmp_path, events, verdict, words):
    path = tmp_path / "events.jsonl"
    path.write_text(lines(*events))
    found = diagnose((str(path),)).diagnosis
    assert (found.verdict, words in found.sentence) == (verdict, True), found


def test_without_a_verdict_the_ranks_logs_are_read(tmp_path):
    folder = job(tmp_path, STARTED, {**ENDED, "reason": "failed", "exit_code": 1})
    (folder / "attempts" / "0").mkdir(parents=True)
    log = "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    (folder / "attempts" / "0" / "rank2.log").write_text(log)
    assert diagnose((str(folder),)).diagnosis.cause == "gpu_ecc"


def test_other_json_lines_are_not_taken_for_ours(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "loss": 2.0}\n' * 30)
    assert "no incident was told" not in diagnose((str(tmp_path),)).diagnosis.sentence
