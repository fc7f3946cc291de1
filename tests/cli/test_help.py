"""The help of every command: whole sentences, one vocabulary, and for each option what is meant where it is left out."""

import re

import click
import pytest
from click.testing import CliRunner

from rankpatrol.cli.main import cli

# What users read in usage lines and options. A new word needs a reason: the same thing has one name everywhere.
WORDS = {
    "ADDR:PORT": "where a port is opened",
    "CMD": "a command and its words",
    "DURATION": "a number with its unit: 90s, 3m, 1h30m",
    "FILE": "a file",
    "FOLDER": "a folder",
    "ID": "a drill",
    "INCIDENT": "an incident's number",
    "JOB": "a job's id",
    "JOBDIR": "a job directory",
    "HOST": "a machine, by the name under which others reach it",
    "KEY=VALUE": "a setting",
    "N": "a number; the help says of what",
    "NAME": "a name that a user gives",
    "NODE": "a node's name",
    "NODES": "several, also as a hostlist: n[1-64]",
    "PATH": "a file or a folder",
    "PATTERN": "a pattern of file names",
    "PCI": "a device's address",
    "PID": "a process's number",
    "RATE": "bytes a second",
    "TEXT": "any words",
    "URL": "where nodes meet",
}
CHOICE = re.compile(r"\[[a-z_]+(\|[a-z_]+)*\]")
DURATION = re.compile(r"\d+(ms|s|m|h|d)")


def walk(command, name):
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            yield from walk(command.get_command(context, each), f"{name} {each}")


COMMANDS = dict(walk(cli, "rankpatrol"))
VALUES = {
    f"{name} {parameter.opts[0]}": (command, parameter)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count
}


def metavar_of(command, parameter):
    return parameter.make_metavar(click.Context(command))


def help_of(command, parameter):
    record = parameter.get_help_record(click.Context(command))
    return record[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_is_whole_at_any_width(name):
    said = CliRunner().invoke(cli, [*name.split()[1:], "--help"], terminal_width=80)
    assert said.exit_code == 0
    listed = said.output.partition("Commands:")[2]
    assert [line for line in listed.splitlines() if line.rstrip().endswith(("...", "…"))] == []
    assert all(len(line) <= 80 for line in listed.splitlines())


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "rankpatrol"])
def test_each_command_says_in_one_line_what_it_is_for(name):
    command = COMMANDS[name]
    line = command.get_short_help_str(200)
    assert line.endswith(".")
    assert len(line) <= 60, "say it in a short_help of 60 characters at most"
    assert command.help


@pytest.mark.parametrize("name", COMMANDS)
def test_what_stands_in_a_usage_line_is_a_word_of_the_vocabulary(name):
    command = COMMANDS[name]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            word = metavar_of(command, parameter).strip("[]").removesuffix("...").strip("[]")
            assert word in WORDS, f"{name}: {word}"


@pytest.mark.parametrize("name", VALUES)
def test_an_option_names_its_value_by_a_word_of_the_vocabulary_or_its_choices(name):
    word = metavar_of(*VALUES[name])
    assert word in WORDS or CHOICE.fullmatch(word), f"{name} {word}: give it a metavar of {', '.join(WORDS)}"


@pytest.mark.parametrize("name", VALUES)
def test_an_option_says_what_holds_where_it_is_left_out(name):
    command, parameter = VALUES[name]
    assert "default: " in help_of(command, parameter) or parameter.required, f"{name}: add '  [default: …]', or show_default=True"


@pytest.mark.parametrize("name", [name for name in VALUES if metavar_of(*VALUES[name]) == "DURATION"])
def test_a_duration_shows_how_it_is_written_with_its_unit(name):
    assert DURATION.search(help_of(*VALUES[name])), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_a_word_of_help(name):
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_exit_codes_are_told_in_one_way(name):
    assert not re.search(r"[Ee]xits with|Exit codes", COMMANDS[name].help or "")
