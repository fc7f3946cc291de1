"""From where the first attempt of a command without shims starts."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

TELL = "import os, sys; print(sys.argv[1:], repr(os.environ.get('RANKPATROL_RESUME_FROM')))"
PLAIN = (sys.executable, "-c", TELL, "--resume={checkpoint}")


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good one of step 60, and a torn one after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.0, 2.0)
    (folder / "step_000060.safetensors").write_bytes(whole)
    (folder / "step_000080.safetensors").write_bytes(whole[:-4])
    return folder


def run(*words: str, command: Sequence[str] = PLAIN, code: int = 0) -> tuple[str, str]:
    arguments = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job", *words, *command]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout.strip(), done.stderr


def test_a_plain_command_resumes_from_the_newest_good_checkpoint_where_it_is_asked_to(checkpoints: Path) -> None:
    good = str(checkpoints / "step_000060.safetensors")
    said, told = run("--checkpoints", "checkpoints", "--resume")
    assert said == f"{[f'--resume={good}']} {good!r}"
    assert "resuming from step_000060.safetensors" in told
    assert "step_000080.safetensors" in told, "the newer one is named, with why it was not taken"


def test_a_plain_command_that_slurm_has_queued_again_resumes_too(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert "step_000060" in run("--checkpoints", "checkpoints")[0]


def test_its_first_attempt_is_told_nothing_where_nobody_asks(checkpoints: Path) -> None:
    said, told = run("--checkpoints", "checkpoints")
    assert said == "['--resume='] ''"
    assert "resum" not in told


def test_any_other_plain_program_gets_an_empty_word_too(checkpoints: Path) -> None:
    assert run("--checkpoints", "checkpoints", command=("echo", "<{checkpoint}>"))[0] == "<>"


def test_a_shell_passes_the_place_on_to_whatever_it_starts(checkpoints: Path) -> None:
    assert run("--checkpoints", "checkpoints", "--resume", command=("sh", "-c", "echo '{checkpoint}'"))[0] == "{checkpoint}"


@pytest.mark.parametrize(("left", "words"), [((), "is not there yet"), (("step_000080.safetensors",), "no good checkpoint in")])
def test_without_a_good_one_it_starts_from_its_own_choice_and_that_is_said(checkpoints: Path, left: Sequence[str], words: str) -> None:
    for each in checkpoints.iterdir():
        if each.name not in left:
            each.unlink()
    if not left:
        checkpoints.rmdir()
    said, told = run("--checkpoints", "checkpoints", "--resume")
    assert said == "['--resume='] ''"
    assert words in told
