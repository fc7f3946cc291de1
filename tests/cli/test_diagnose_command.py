"""`rankpatrol diagnose`: its words, its JSON and its exit codes."""

import json

import pytest

from log_texts import DATA
from rankpatrol.cli.main import call


def run(capsys, *arguments):
    code = call(["diagnose", *map(str, arguments)])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_the_json_is_the_contracts(capsys):
    code, out, _ = run(capsys, DATA / "cases" / "042.input.txt", "--json")
    answer = json.loads(out)
    assert code == 2
    assert {
        "verdict",
        "cause",
        "culprit_ranks",
        "awaited_ranks",
        "victim_ranks",
        "certainty",
        "sentence",
        "for",
        "against",
        "suggested",
    } <= set(answer)
    assert answer["culprit_ranks"] == [9]


def test_the_words_hold_the_sentence_and_its_reasons(capsys):
    _, out, _ = run(capsys, DATA / "cases" / "062.input.txt")
    assert out.startswith("crash / sigsegv (")
    assert "for:" in out
    assert "do next:" in out


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("told/finished", 0),
        ("told/megatron_save", 0),
        ("cases/083.input", 1),
        ("told/preempt", 1),
        ("cases/065.input", 2),
        ("told/nothing", 3),
    ],
)
def test_the_exit_code_is_the_verdicts(capsys, name, code):
    assert run(capsys, DATA / f"{name}.txt")[0] == code


def test_no_path_is_wrong_usage(capsys):
    code, _, err = run(capsys)
    assert code == 64
    assert "PATH" in err


def test_a_path_that_is_not_there_is_bad_input(capsys, tmp_path):
    code, out, err = run(capsys, tmp_path / "nothing", "--json")
    assert (code, out) == (65, "")
    assert "is not there" in err


def test_what_a_log_says_does_not_steer_the_terminal(capsys, tmp_path):
    (tmp_path / "log").write_text("[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: \x1b[2J\x07gone\n")
    _, out, _ = run(capsys, tmp_path / "log")
    assert "\x1b" not in out
    assert "\x07" not in out


def test_steps_that_are_lost_are_no_success(capsys):
    code, out, _ = run(capsys, DATA / "told" / "nan_epochs.txt")
    assert out.startswith("healthy / loss_nan (")
    assert code == 1
