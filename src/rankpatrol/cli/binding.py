"""Binds this process and becomes CMD. A rank waits for it: no library but Python's own, and of that what is needed."""

from __future__ import annotations

import os
import signal

from rankpatrol.affinity import binder, kernel
from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.plan import BIND, CORE, NO_MEMORY, NODE, NOTHING, PREFERRED, REFUSED, STRICT, RankPlan, Want, describe
from rankpatrol.affinity.tuples import NamedTuple
from rankpatrol.cli.words import say
from rankpatrol.core.errors import BadInput, CommandFailed, PatrolError, UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

MODES, MEMORIES = (NODE, CORE), (PREFERRED, STRICT, NO_MEMORY)
_NOT_THERE, _CANNOT_RUN = 127, 126  # the shell's own numbers
_FLAGS = {"--force": "force", "-q": "quiet", "--quiet": "quiet"}
_VALUES = {"--mode": MODES, "--memory": MEMORIES, "--gpu": None}


class Asked(NamedTuple):
    """The words of one `rankpatrol bind`."""

    command: tuple[str, ...]
    mode: str = NODE
    memory: str = PREFERRED
    gpu: str | None = None
    force: bool = False
    quiet: bool = False


def read_plainly(words: Sequence[str]) -> Asked | None:
    """What plain words ask for; None where they are to be refused, explained or guessed at: that is click's trade."""
    given: dict[str, str | bool] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        at += 1
        if name == "--" and not equals:
            break
        if name in _FLAGS and not equals:
            given[_FLAGS[name]] = True
            continue
        if name not in _VALUES or (not equals and at == len(words)):
            return None
        if not equals:
            value, at = words[at], at + 1
        allowed = _VALUES[name]
        if allowed is not None and value not in allowed:
            return None
        given[name[2:]] = value
    return Asked(tuple(words[at:]), **given) if at < len(words) else None  # type: ignore[arg-type]


def bind_quickly(asked: Asked) -> int:
    """The exit code where CMD cannot be started; else this is CMD by now. The words and codes are those of cli/main.py."""
    try:
        become(asked)
    except PatrolError as problem:
        say(f"rankpatrol: {problem}\n  {problem.help}", err=True)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130


def become(asked: Asked) -> NoReturn:
    """Bind where that is certain, say so, and become CMD. Raises PatrolError where CMD cannot be."""
    words = asked.command[1:] if asked.command[:1] == ("--",) else asked.command
    if not words:
        raise UsageProblem("there is no command to start", help="Write it last: srun rankpatrol bind -- python train.py")
    made = _planned(Want(asked.mode, asked.memory), asked.gpu, force=asked.force)
    notes = made.notes
    if made.decision == BIND:
        try:
            problem = kernel.bind(made.cpus, made.memory, made.memory_node)
        except OSError as refused:
            made = made._replace(decision=REFUSED, why=f"the kernel refuses CPUs {format_cpus(made.cpus)} ({refused.strerror})")
        else:
            notes = notes if problem is None else (*notes, problem)
    if not asked.quiet and made.decision != NOTHING:
        _tell(made, notes)
    _exec(words)


def _planned(want: Want, address: str | None, *, force: bool) -> RankPlan:
    named = None
    if address is not None:
        from rankpatrol.affinity.sysfs import read_gpu  # ruff: ignore[PLC0415] - see above

        named = read_gpu(address.lower())
        if named is None:
            raise BadInput(
                f"there is no PCI device {address}", help="`rankpatrol affinity show` lists the GPUs; lspci -D lists all devices."
            )
    return binder.decide(os.environ, want, None if force else os.getppid(), gpu=named)


def _tell(made: RankPlan, notes: tuple[str, ...]) -> None:
    bound = "bound to " if made.decision == BIND else ""
    say("\n".join(f"rankpatrol: local rank {made.rank}: {line}" for line in (bound + describe(made), *notes)), err=True)


def _exec(words: tuple[str, ...]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)  # ruff: ignore[S606] - no shell is wanted
    except OSError as problem:
        failed = CommandFailed(f"cannot start {words[0]}: {problem.strerror}", help="Check the spelling, or give the command's full path.")
        failed.exit_code = _NOT_THERE if isinstance(problem, FileNotFoundError) else _CANNOT_RUN
        raise failed from problem
