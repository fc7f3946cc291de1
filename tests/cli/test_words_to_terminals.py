"""Every word that the commands print goes through the two modules that make it plain; JSON documents steer no terminal either."""

import ast
import json
from pathlib import Path

import pytest

import rankpatrol
from rankpatrol.cli.main import call
from rankpatrol.cli.words import say_json

SOURCE = Path(rankpatrol.__file__).parent
PRINTERS = [
    *(path for path in sorted((SOURCE / "cli").glob("*.py")) if path.name not in {"words.py", "screen.py"}),
    SOURCE / "drill/__main__.py",
]
# What may be given to a console: texts made plain, and tables of such texts.
PLAIN = {"shown", "assemble", "_table", "table", "_row"}
# A program that reads a pipe gets the very name of a checkpoint.
ECHOED = {"plain(path) if sys.stdout.isatty() else path"}
STEERS = "\x1b[2J\x9b2K\u202e\U000e0041"


def name_of(node):
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return name_of(function)
    return ""


def raw_words(tree):
    """The calls by which a foreign word could reach a terminal as it is."""
    for spoken in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [ast.unparse(argument) for argument in spoken.args]
        match name_of(spoken.func):
            case "print" if not all(name_of(argument) in PLAIN for argument in spoken.args):
                yield spoken.lineno, given
            case "echo" | "secho" if not set(given) <= ECHOED:
                yield spoken.lineno, given
            case "Text" | "write" | "show_message":
                yield spoken.lineno, given
            case "add_row" if any(isinstance(argument, ast.JoinedStr | ast.Attribute) for argument in spoken.args):
                yield spoken.lineno, given


@pytest.mark.parametrize("path", PRINTERS, ids=lambda path: path.stem)
def test_no_command_prints_a_word_past_them(path):
    assert list(raw_words(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("words", ['click.echo(f"{job}")', "console.print(name)", "console.print(Text(name))", "table.add_row(row.node)"])
def test_the_search_finds_what_it_is_for(words):
    assert list(raw_words(ast.parse(words)))


@pytest.mark.parametrize("indent", [0, 2])
def test_a_document_holds_the_same_and_steers_nothing(capsys, indent):
    document = {STEERS: [STEERS, "ä", 1.5]}
    say_json(document, indent=indent)
    out = capsys.readouterr().out
    assert json.loads(out) == document
    assert not set(STEERS) - set("[2JK") & set(out)
    assert "ä" in out


@pytest.mark.parametrize("words", [["status", f"--{STEERS}"], [f"{STEERS}"], ["watch", "--pid", STEERS], ["checkpoints", STEERS]])
def test_wrong_words_are_told_plainly(capsys, words):
    assert call(words) == 64
    told = capsys.readouterr()
    assert told.err
    assert not {"\x1b", "\x9b", "\u202e"} & set(told.out + told.err)
