"""`rankpatrol bind`: bind this process to its GPU's NUMA node, then become CMD."""

import os
import signal
from typing import NoReturn

import click

from rankpatrol.affinity import binder, kernel
from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.plan import BIND, CORE, NO_MEMORY, NODE, NOTHING, PREFERRED, STRICT, RankPlan, Want, describe
from rankpatrol.affinity.sysfs import read_gpu
from rankpatrol.cli.words import say
from rankpatrol.core.errors import BadInput, CommandFailed, UsageProblem

_NOT_THERE, _CANNOT_RUN = 127, 126  # the shell's own numbers


@click.command(short_help="Bind a process to its GPU's NUMA node, then become it.", context_settings={"allow_interspersed_args": False})
@click.option(
    "--mode", type=click.Choice([NODE, CORE]), default=NODE, show_default=True, help="Share the node's CPUs, or get cores of one's own."
)
@click.option(
    "--memory",
    type=click.Choice([PREFERRED, STRICT, NO_MEMORY]),
    default=PREFERRED,
    show_default=True,
    help="Take memory from the node while it has some, from it alone (a full node then ends the rank), or leave it.",
)
@click.option(
    "--gpu",
    metavar="PCI",
    help="The rank's GPU by its PCI address (0000:18:00.0), where its environment does not say.  [default: what that says]",
)
@click.option("--force", is_flag=True, help="Bind even if the launcher has bound this rank already.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing, neither what was bound nor why not.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def bind(*, mode: str, memory: str, gpu: str | None, force: bool, quiet: bool, command: tuple[str, ...]) -> NoReturn:
    """Bind to the CPUs and the memory nearest to this rank's GPU, then become CMD. Where that cannot be said for certain, just become CMD.

    Any launcher may stand before it:

    \b
    srun rankpatrol bind -- python train.py
    mpirun -n 8 --bind-to none rankpatrol bind -- python train.py
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise UsageProblem("there is no command to start", help="Write it last: srun rankpatrol bind -- python train.py")
    made = _planned(Want(mode, memory), gpu, force=force)
    notes = made.notes
    if made.decision == BIND:
        try:
            problem = kernel.bind(made.cpus, made.memory, made.memory_node)
        except OSError as refused:
            made = made._replace(decision="refused", why=f"the kernel refuses CPUs {format_cpus(made.cpus)} ({refused.strerror})")
        else:
            notes = notes if problem is None else (*notes, problem)
    if not quiet and made.decision != NOTHING:
        _say(made, notes)
    _become(words)


def _planned(want: Want, address: str | None, *, force: bool) -> RankPlan:
    named = None
    if address is not None:
        named = read_gpu(address.lower())
        if named is None:
            raise BadInput(
                f"there is no PCI device {address}", help="`rankpatrol affinity show` lists the GPUs; lspci -D lists all devices."
            )
    return binder.decide(os.environ, want, None if force else os.getppid(), gpu=named)


def _say(made: RankPlan, notes: tuple[str, ...]) -> None:
    say(f"rankpatrol: local rank {made.rank}: {'bound to ' if made.decision == BIND else ''}{describe(made)}", err=True)
    for note in notes:
        say(f"rankpatrol: local rank {made.rank}: {note}", err=True)


def _become(words: tuple[str, ...]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)  # ruff: ignore[S606] - no shell is wanted
    except OSError as problem:
        failed = CommandFailed(f"cannot start {words[0]}: {problem.strerror}", help="Check the spelling, or give the command's full path.")
        failed.exit_code = _NOT_THERE if isinstance(problem, FileNotFoundError) else _CANNOT_RUN
        raise failed from problem
