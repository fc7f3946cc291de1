"""What the system refuses is said in one line, with an exit code that a script can tell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankpatrol.cli import main
from rankpatrol.cli.main import call


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), 65, "rankpatrol: No such file or directory: /proc/x\n"),
        (PermissionError(13, "Permission denied", "/root/x"), 77, "rankpatrol: Permission denied: /root/x\n"),
        (PermissionError(1, "Operation not permitted"), 77, "rankpatrol: Operation not permitted\n"),
        (OSError("what a library says"), 65, "rankpatrol: what a library says\n"),
        (OSError(18, "Invalid cross-device link", "a", None, "b"), 65, "rankpatrol: Invalid cross-device link: a, b\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a\x1b[2A"),
            65,
            "rankpatrol: No such file or directory: a\N{REPLACEMENT CHARACTER}[2A\n",
        ),
    ],
    ids=repr,
)
def test_an_error_of_the_system_is_one_line_and_an_exit_code(monkeypatch, capsys, problem, code, said):
    def refuse(*_, **__):
        raise problem

    monkeypatch.setattr(main.cli, "main", refuse)
    assert call(["status"]) == code
    assert capsys.readouterr().err == said


def run(arguments, **how):
    return subprocess.run(
        [sys.executable, "-m", "rankpatrol", *arguments], capture_output="stdout" not in how, text=True, timeout=60, check=False, **how
    )


def test_a_full_disk_behind_the_output_is_said_once():
    with Path("/dev/full").open("w") as full:
        seen = run(["--help"], stdout=full, stderr=subprocess.PIPE)
    assert (seen.returncode, seen.stderr) == (65, "rankpatrol: No space left on device\n")


def test_a_terminal_that_cannot_write_a_character_is_told_the_way_out(tmp_path):
    seen = run(["orphans"], env={**os.environ, "PYTHONIOENCODING": "ascii", "RANKPATROL_STATE_DIR": str(tmp_path)})
    assert seen.returncode == 65
    assert seen.stderr.startswith("rankpatrol: a character cannot be read or written here")
    assert seen.stderr.count("\n") == 1


def test_a_closed_standard_input_is_no_text():
    seen = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m rankpatrol diagnose - <&-"], capture_output=True, text=True, timeout=60, check=False
    )
    assert seen.returncode == 65
    assert "standard input is closed" in seen.stderr


def test_a_reader_that_has_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    seen = run(["doctor", "--json"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert "Traceback" not in seen.stderr
    assert "rankpatrol:" not in seen.stderr
