"""Exit codes by what stands in the way: 64 for wrong words, 65 for what is no evidence, 77 for what this user may not do."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import pytest

from rankpatrol.cli.main import call

NOISE = bytes(range(1, 256)) * 40
# Root without the right to pass by permissions (capabilities(7)).
CLOSED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-sys_ptrace", "--inh-caps=-dac_override,-dac_read_search,-sys_ptrace")
CAN_DROP = os.getuid() == 0 and shutil.which("setpriv") and subprocess.run([*CLOSED, "true"], check=False).returncode == 0
needs_dropping = pytest.mark.skipif(not CAN_DROP, reason="needs root, and setpriv")
EVENT = {"at_unix_s": 1.0, "kind": "job_started", "attempt": 0}


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))


def closed(folder, *words):
    command = [*CLOSED, sys.executable, "-m", "rankpatrol", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)


@needs_dropping
@pytest.mark.parametrize(
    "words",
    [
        ("status", "closed/job"),
        ("why", "closed/job"),
        ("diagnose", "unread"),
        ("checkpoints", "verify", "unread"),
        ("checkpoints", "latest", "closed"),
        ("checkpoints", "repair", "closed"),
        ("replay", "unread"),
        ("config", "show", "--config", "unread"),
        ("affinity", "show", "--topo", "unread"),
        ("goodput", "job", "--svg", "closed/x.svg"),
        ("capture", "--pid", "OURS", "--out", "closed/bundle"),
        ("capture", "--pid", "OURS", "--out", "closed/a/bundle"),
        ("run", "--job-dir", "closed/job", "true"),
        ("run", "--config", "unread", "true"),
        ("drill", "F5", "--out", "closed/drill"),
        ("pause", "closed/job"),
    ],
    ids=" ".join,
)
def test_what_this_user_may_not_do_is_77(tmp_path, words):
    (tmp_path / "unread").write_text("step 1\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "events.jsonl").write_text(json.dumps(EVENT) + "\n" + json.dumps({**EVENT, "at_unix_s": 9.0, "kind": "job_ended"}))
    (tmp_path / "closed").mkdir()
    (tmp_path / "unread").chmod(0)
    (tmp_path / "closed").chmod(0)
    done = closed(tmp_path, *(os.getpid() if word == "OURS" else word for word in words))
    assert done.returncode == 77, done.stdout + done.stderr
    assert done.stderr.startswith("rankpatrol: ")
    assert "Traceback" not in done.stderr
    (tmp_path / "closed").chmod(0o700)
    assert list((tmp_path / "closed").iterdir()) == []


@needs_dropping
def test_a_process_of_another_user_is_77_and_one_that_is_gone_65(tmp_path):
    process = subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"])
    try:
        assert closed(tmp_path, "affinity", "check", "--pid", process.pid).returncode == 77
    finally:
        process.kill()
        process.wait(10)
    assert closed(tmp_path, "affinity", "check", "--pid", process.pid).returncode == 65


@pytest.mark.parametrize("name", ["noise", "rank0.log", "noise.gz", "dump_rank3", "trace.pkl", "noise.bin"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_noise_is_no_evidence(tmp_path, capsys, name, pack):
    (tmp_path / name).write_bytes(pack(NOISE))
    assert call(["diagnose", str(tmp_path / name)]) == 65
    assert "nothing readable" in capsys.readouterr().err


def test_noise_from_a_pipe_is_no_evidence_either(tmp_path):
    done = subprocess.run([sys.executable, "-m", "rankpatrol", "diagnose", "-"], input=NOISE, capture_output=True, timeout=60, check=False)
    assert done.returncode == 65
    assert b"binary" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        b"\0" * 5000 + b"step 812 loss 2.3\n" * 20,
        "\u0448\u0430\u0433 812\n\u0441\u0442\u043e\u0438\u0442\n".encode("koi8-r") * 50,
        "第812步 数据加载\n".encode("gbk") * 50,
        b"\x1b[32mstep 1\x1b[0m\r" * 50,
        "step 1\n".encode("utf-16") * 50,
        b"step 812 is told before the noise\n" + NOISE,
        NOISE + b"step 812\n" * 30_000,
    ],
    ids=["hole", "koi8", "gbk", "colours", "utf-16", "noise behind", "noise before"],
)
def test_text_of_any_kind_is_read(tmp_path, text):
    (tmp_path / "rank0.log").write_bytes(text)
    assert call(["diagnose", str(tmp_path / "rank0.log")]) in {0, 1, 2, 3}


def test_of_a_folder_the_text_is_read_and_the_noise_is_named(tmp_path, capsys):
    (tmp_path / "rank0.log").write_text("step 1\n" * 30)
    (tmp_path / "rank1.log").write_bytes(NOISE)
    assert call(["diagnose", str(tmp_path)]) in {0, 1, 2, 3}
    assert "rank1.log is binary" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "why", "goodput", "replay", "doctor", "pause"])
def test_a_job_directory_of_noise_is_65(tmp_path, command):
    for name in ("job.json", "state.json", "events.jsonl", "incidents.jsonl", "recording.jsonl"):
        (tmp_path / name).write_bytes(NOISE)
    assert call([command, str(tmp_path)]) == 65


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--job-dir", "", "true"),
        ("run", "--jobs-dir", "", "true"),
        ("run", "--config", "", "true"),
        ("run", "--checkpoints", "", "true"),
        ("watch", "--all", "--job-dir", ""),
        ("capture", "--pid", "1", "--out", ""),
        ("goodput", ".", "--svg", ""),
        ("diagnose", ""),
        ("diagnose", "-", ""),
        ("status", ""),
        ("why", ""),
        ("pause", ""),
        ("doctor", "--python", ""),
        ("shim", "--run-dir", "", "--", "true"),
        ("checkpoints", "latest", ""),
        ("end", "--job", "7", "--out", ""),
        ("affinity", "show", "--topo", ""),
        ("drill", "F5", "--out", ""),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_wrong_usage(capsys, words):
    """So is what a script makes of a variable that is not set: --job-dir "$DIR"."""
    assert call(list(words)) == 64
    assert "--help" in capsys.readouterr().err


def test_a_run_directory_that_is_none_is_said_and_the_command_runs(tmp_path):
    words = [sys.executable, "-m", "rankpatrol", "shim", "--run-dir", "/nope", "--", "echo", "it runs"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "it runs\n")
    assert "/nope is no run directory" in done.stderr


def test_a_moved_job_directory_tells_its_story_and_finds_its_bundle(tmp_path, capsys):
    sealed = tmp_path / "moved" / "incidents" / "1"
    sealed.mkdir(parents=True)
    (sealed.parent.parent / "job.json").write_text("{}")
    verdict = {**EVENT, "kind": "verdict", "incident": 1, "verdict": "hang", "cause": "spin", "sentence": "it spins"}
    bundle = {**EVENT, "kind": "bundle_sealed", "incident": 1, "path": "/old/place/incidents/1", "seconds": 1.0}
    (tmp_path / "moved" / "events.jsonl").write_text(json.dumps(verdict) + "\n" + json.dumps(bundle) + "\n")
    (sealed / "diagnosis.json").write_text(json.dumps({"for": ["the very frames"]}))
    assert call(["why", str(tmp_path / "moved")]) == 2
    told = capsys.readouterr().out
    assert "the very frames" in told
    assert f"rankpatrol bundle show {sealed}" in told
    shutil.rmtree(sealed)
    assert call(["why", str(tmp_path / "moved")]) == 2
    assert "/old/place/incidents/1 is not there any more" in capsys.readouterr().out
