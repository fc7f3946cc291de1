"""The command line: finds the command, prints what a PatrolError has to say, and gives the exit codes of CONTRACT."""

import contextlib
import importlib
import os
import sys
from typing import NoReturn

import click

from rankpatrol import __version__
from rankpatrol.cli.words import say
from rankpatrol.core.errors import ExitCode, PatrolError

# Imported only when called: `rankpatrol --version` stays quick, and a broken part does not take the others along.
_COMMANDS = {
    "run": ("rankpatrol.cli.run", "run"),
    "shim": ("rankpatrol.cli.shim", "shim"),
    "end": ("rankpatrol.cli.end", "end"),
    "watch": ("rankpatrol.cli.watch", "watch"),
    "status": ("rankpatrol.cli.status", "status"),
    "why": ("rankpatrol.cli.status", "why"),
    "pause": ("rankpatrol.cli.pause", "pause"),
    "unpause": ("rankpatrol.cli.pause", "unpause"),
    "act": ("rankpatrol.cli.pause", "act"),
    "capture": ("rankpatrol.cli.capture", "capture"),
    "bundle": ("rankpatrol.cli.bundle", "bundle"),
    "config": ("rankpatrol.cli.settings", "config"),
    "doctor": ("rankpatrol.cli.doctor", "doctor"),
    "checkpoints": ("rankpatrol.cli.checkpoints", "checkpoints"),
    "affinity": ("rankpatrol.cli.affinity", "affinity"),
    "bind": ("rankpatrol.cli.bind", "bind"),
    "goodput": ("rankpatrol.cli.goodput", "goodput"),
    "metrics": ("rankpatrol.cli.metrics", "metrics"),
    "replay": ("rankpatrol.cli.replay", "replay"),
    "lemons": ("rankpatrol.cli.lemons", "lemons"),
    "agent": ("rankpatrol.cli.agent", "agent"),
    "hub": ("rankpatrol.cli.hub", "hub"),
    "orphans": ("rankpatrol.cli.orphans", "orphans"),
    "drill": ("rankpatrol.drill.__main__", "main"),
    "diagnose": ("rankpatrol.cli.diagnose", "diagnose_command"),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        return command if isinstance(command, click.Command) else None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rankpatrol", message="%(prog)s %(version)s")
def cli() -> None:
    """Patrol distributed PyTorch training: see a hang, name the rank, seal the evidence, recover the job."""


def main() -> NoReturn:
    """Run one command; the entry point of the `rankpatrol` script."""
    _open_closed_outputs()
    sys.exit(call(sys.argv[1:]))


def _open_closed_outputs() -> None:
    """Behind `2>&-` the next file that is opened would be the standard error: it, or the output, leads nowhere instead."""
    if None not in {sys.stdin, sys.stdout, sys.stderr}:
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def call(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        done = cli.main(arguments, prog_name="rankpatrol", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk is met here, and not behind the exit code
    except click.UsageError as problem:
        _show(problem)
        return ExitCode.USAGE
    except click.ClickException as problem:
        say(f"rankpatrol: {problem.format_message()}", err=True)
        return ExitCode.BAD_INPUT
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("rankpatrol: interrupted", err=True)
        return 130
    except (BrokenPipeError, SystemExit) as leaving:
        return _left(leaving)
    except PatrolError as problem:
        say(f"rankpatrol: {problem}\n  {problem.help}", err=True)
        return problem.exit_code
    except (OSError, UnicodeError) as problem:
        _shut_output()
        say(f"rankpatrol: {_reason(problem)}", err=True)
        return ExitCode.NO_PERMISSION if isinstance(problem, PermissionError) else ExitCode.BAD_INPUT
    return done if isinstance(done, int) else ExitCode.OK


def _show(problem: click.UsageError) -> None:
    """What click has to say of wrong words, which may come from anywhere (a file's name, another program)."""
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        say(problem.format_message(), err=True)  # the whole help
        return
    if problem.ctx is not None:
        say(f"{problem.ctx.get_usage()}\nTry '{problem.ctx.command_path} --help' for help.\n", err=True)
    say(f"Error: {problem.format_message()}", err=True)


def _left(leaving: BrokenPipeError | SystemExit) -> int:
    """0 where the reader of a pipe (a pager, head) had enough: click leaves with 1 then, and a wrapper around its output."""
    had_enough = isinstance(leaving, BrokenPipeError) or "Pacify" in type(sys.stdout).__name__
    if not had_enough:
        raise leaving
    return ExitCode.OK


def _reason(problem: OSError | UnicodeError) -> str:
    """In one line what the system says, and of which file."""
    if isinstance(problem, OSError):
        of = ", ".join(str(name) for name in (problem.filename, problem.filename2) if name is not None)
        return (problem.strerror or str(problem) or type(problem).__name__) + (f": {of}" if of else "")
    why = str(getattr(problem, "reason", problem)).partition("\n")[0]
    return f"a character cannot be read or written here ({why}): set PYTHONIOENCODING=utf-8"


def _shut_output() -> None:
    """What is left in the buffer of an output that refuses would be refused again at exit, with a traceback."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
