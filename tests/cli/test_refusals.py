"""`checkpoints` and `goodput` where the file system refuses, or an output is closed: 77, 65, and no traceback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankpatrol.cli.main import call

# Root without the right to pass over permissions (capabilities(7)) is refused like anybody else.
_MODEST = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
_SETPRIV = os.getuid() != 0 or shutil.which("setpriv") is not None


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("ckpt").mkdir()
    Path("ckpt/step_10.json").write_text("{}")
    Path("ckpt/step_10.pt").write_bytes(b"PK\x03\x04")
    Path("job").mkdir()
    Path("job/events.jsonl").write_text('{"at_unix_s": 1.8e9, "kind": "job_started"}\n')
    Path("kept").mkdir()
    os.mkfifo("pipe")
    return tmp_path


def run(words, *, modest=False, closed=""):
    line = [sys.executable, "-m", "rankpatrol", *words]
    line = ["sh", "-c", f'exec "$@" {closed}', "sh", *line] if closed else line
    line = [*_MODEST, *line] if modest and os.getuid() == 0 else line
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(not _SETPRIV, reason="needs setpriv to be refused as root")
@pytest.mark.parametrize(
    ("closed_to_us", "words"),
    [
        ("ckpt", ["checkpoints", "latest", "ckpt"]),
        ("ckpt", ["checkpoints", "verify", "ckpt"]),
        ("ckpt", ["checkpoints", "repair", "ckpt"]),
        ("ckpt/step_10.pt", ["checkpoints", "verify", "ckpt/step_10.pt"]),
        ("job", ["goodput", "job"]),
        ("job/events.jsonl", ["goodput", "job"]),
        ("kept", ["goodput", "job", "--svg", "kept/x.svg"]),
        ("kept", ["hub", "init-keys", "kept/keys", "--nodes", "n1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_what_the_file_system_refuses_is_no_permission(place, closed_to_us, words):
    (place / closed_to_us).chmod(0)
    try:
        seen = run(words, modest=True)
    finally:
        (place / closed_to_us).chmod(0o755)
    assert (seen.returncode, seen.stdout) == (77, "")
    assert seen.stderr.startswith("rankpatrol: ")


@pytest.mark.skipif(not _SETPRIV, reason="needs setpriv to be refused as root")
def test_where_no_checkpoint_may_be_read_it_is_not_known_that_none_is_good(place):
    Path("ckpt/step_10.pt").chmod(0)
    seen = run(["checkpoints", "latest", "ckpt"], modest=True)
    assert (seen.returncode, seen.stdout) == (3, "")
    assert "Permission denied" in seen.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["checkpoints", "latest", "nowhere"], 65),
        (["checkpoints", "verify", "ckpt", "nowhere"], 65),
        (["checkpoints", "repair", "nowhere"], 65),
        (["checkpoints", "latest", "ckpt/step_10.pt"], 65),
        (["checkpoints", "verify", "pipe"], 65),
        (["checkpoints", "latest", ""], 64),
        (["replay", "nowhere"], 65),
        (["goodput", "nowhere"], 65),
        (["goodput", "pipe"], 65),
        (["goodput", ""], 64),
        (["goodput", "job", "--svg", "nowhere/x.svg"], 65),
        (["goodput", "job", "--svg", "kept"], 65),
        (["goodput", "job", "--svg", "pipe"], 65),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_what_cannot_be_used_is_bad_input_and_an_empty_word_wrong_usage(place, capsys, words, code):
    assert call(words) == code
    assert capsys.readouterr().err.startswith("Usage: " if code == 64 else "rankpatrol: ")


def test_a_picture_takes_no_device_s_place(place):
    assert call(["goodput", "job", "--svg", "pipe"]) == 65
    assert (place / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("words", "closed", "code", "printed"),
    [
        (["checkpoints", "latest", "ckpt"], "2>&-", 2, ""),
        (["checkpoints", "latest", "ckpt"], ">&- 2>&- <&-", 2, ""),
        (["checkpoints", "verify", "ckpt"], "2>&-", 2, "step_10.pt ends at byte 4"),
        (["goodput", "job"], ">&-", 0, ""),
        (["goodput", "nowhere"], "2>&-", 65, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_closed_output_changes_no_exit_code(place, words, closed, code, printed):
    seen = run(words, closed=closed)
    assert (seen.returncode, "Traceback" in seen.stderr) == (code, False)
    assert printed in seen.stdout
