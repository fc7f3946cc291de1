"""What logs say is told without the secrets in it, and never steers a terminal: wherever it is written, and whoever prints it."""

import json
import os

import msgspec
import pytest

from clocks import FakeClock
from rankpatrol.agent.voice import Voice
from rankpatrol.cli.main import call
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.evidence.findings import speakable
from rankpatrol.evidence.redact import redact_record
from rankpatrol.incident.records import SuspectNamed
from rankpatrol.journal import Journal
from rankpatrol.system.background import Courier
from standin_job import LAUNCHER, running

SECRETS = ("zQsecretQz41", "zQpasswordQz", "AKIAZQZQZQZQZQZQ1234", "zQsignatureQz%2B9")
SAID = (
    f"401 for token={SECRETS[0]} at https://ada:{SECRETS[1]}@host/x (key {SECRETS[2]}, "
    f"https://blob.net/c?sv=2024&sig={SECRETS[3]}) at step 812"
)
STEERS = "\x1b[2J\x1b]0;owned\x07\x9b2K\u202e\u2066\u200b"
RAISES = f"""
import os, sys, time
print("step 812", flush=True)
time.sleep(1.5)
if os.environ["RANK"] == "1":
    raise RuntimeError({STEERS + SAID!r})
time.sleep(60)
"""
FOUND = Diagnosis(
    verdict="crash", cause="python_exception", sentence=f"rank 1 raised RuntimeError: {SAID}", reasons_for=(SAID,), file="/d/token=x"
)


def secrets_in(text):
    return [secret for secret in SECRETS if secret in text]


def test_a_crash_whose_message_holds_secrets_leaves_none_anywhere(tmp_path):
    """The rank's own log is the user's, and stays as it was written."""
    script = tmp_path / "train.py"
    script.write_text(RAISES)
    words = (str(LAUNCHER), "2", str(script), f"--hub-token={SECRETS[0]}")
    with running(tmp_path, "--policy", "observe", "--record", launcher=words) as job:
        job.wait_for("job_ended")
        job.process.wait(30)
        why = job.type("why", "job")
        status = job.type("status", "job")
    verdict = next(event for event in job.events() if event["kind"] == "verdict")
    assert "RuntimeError" in verdict["sentence"]
    assert "step 812" in verdict["sentence"]
    assert (job.job_dir / "incidents.jsonl").exists()
    for path in job.job_dir.rglob("*"):
        if path.is_file() and path.parent.parent.name != "attempts":
            assert secrets_in(path.read_text()) == [], path
    said = [line for line in job.said().split("\n") if " rankpatrol: " in line]
    for text in ("\n".join(said), why.stdout, why.stderr, status.stdout):
        assert secrets_in(text) == []
        assert not set(STEERS) & set("\x1b\x9b\u202e\u2066\u200b\x07") & set(text)
    assert any("RuntimeError" in line for line in said)


def test_the_journal_writes_no_secret_and_paths_as_they_are(tmp_path):
    journal = Journal(tmp_path, tmp_path, Courier("test"), FakeClock())
    journal.tell("verdict", 0, incident=1, sentence=SAID, command=["train.py", "--hub-token", SECRETS[0]], path="/runs/token=x/1")
    journal.record(SuspectNamed(incident=1, attempt=0, onset_unix_s=1.0, diagnosis=FOUND))
    written = (tmp_path / "events.jsonl").read_text() + (tmp_path / "incidents.jsonl").read_text()
    assert secrets_in(written) == []
    assert "/runs/token=x/1" in written


def test_a_diagnosis_without_secrets_is_else_the_same():
    said = speakable(FOUND)
    assert secrets_in(said.sentence) == []
    assert said.file == FOUND.file
    plain = msgspec.structs.replace(
        FOUND, sentence="rank 1 waits in all_reduce 812 (512 tokens, pad_token 0)", reasons_for=("max_tokens=12",)
    )
    assert speakable(plain) == plain
    assert speakable(said) == said


def test_words_that_are_no_strings_stay_what_they_are():
    record = {"a": 1, "b": None, "c": 2.5, "d": [True, {"e": 3}]}
    assert redact_record(record) == record


@pytest.fixture
def terminal():
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_the_voice_passes_no_order_and_no_secret_on(terminal, monkeypatch, term):
    ours, theirs = terminal
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", "1")
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    voice = Voice(theirs)
    for style in ("alert", "verdict", "good", "plain", "dim"):
        voice.say(f"{STEERS}it is {SAID}\udcff", style)
        voice.show(f"{STEERS}now {SAID}\udcff", style)
    said = os.read(ours, 1 << 16).decode()
    assert secrets_in(said) == []
    assert "\x1b[2J" not in said
    assert not {"\x9b", "\u202e", "\u2066", "\u200b", "\x07"} & set(said)
    assert "it is 401 for token=" in said


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_diagnose_tells_no_secret(tmp_path, capsys, options):
    log = tmp_path / "rank1.log"
    log.write_text(f'step 812\nTraceback (most recent call last):\n  File "train.py", line 3, in main\nRuntimeError: {STEERS}{SAID}\n')
    assert call(["diagnose", str(log), *options]) == 2
    told = capsys.readouterr()
    assert secrets_in(told.out + told.err) == []
    assert "RuntimeError" in told.out
    if options:
        assert json.loads(told.out)["verdict"] == "crash"
    else:
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(told.out)
