"""One tree of errors. Each says what happened, and its `help` says why and what to do next."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every reading command, as CONTRACT fixes them (0-3 are Nagios's, 64-77 are sysexits(3)'s)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3
    USAGE = 64
    BAD_INPUT = 65
    NO_PERMISSION = 77


class PatrolError(Exception):
    """Something rankpatrol can explain. Caught at the agent loop's edge (no action that cycle) and in the CLI (printed)."""

    help = "Run the command again with --help, or report this as a bug."
    exit_code: int = ExitCode.UNKNOWN

    def __init__(self, what: str, *, help: str | None = None) -> None:
        super().__init__(what)
        if help is not None:
            self.help = help


class UsageProblem(PatrolError):
    """The words of a command are wrong."""

    exit_code = ExitCode.USAGE


class BadInput(PatrolError):
    """A file or folder is not what the command needs."""

    exit_code = ExitCode.BAD_INPUT


class NoPermission(PatrolError):
    """The kernel or the file system refused."""

    exit_code = ExitCode.NO_PERMISSION


class CommandFailed(PatrolError):
    """A program that rankpatrol ran did not do its work: not found, over its deadline, or a non-zero exit."""


class ProcessChanged(PatrolError):
    """The process is no longer the one that was meant: its pid is free, or worn by another."""

    help = "Nothing was signalled. The process ended by itself; look at the job's log for why."


class EvidenceError(PatrolError):
    """A bundle could not be captured, sealed or read."""
