"""`rankpatrol bind`: bind this process to its GPU's NUMA node, then become CMD. Plain words take a quicker way: __main__.py."""

from typing import NoReturn

import click

from rankpatrol.affinity.plan import NODE, PREFERRED
from rankpatrol.cli.binding import MEMORIES, MODES, Asked, become


@click.command(short_help="Bind a process to its GPU's NUMA node, then become it.", context_settings={"allow_interspersed_args": False})
@click.option("--mode", type=click.Choice(MODES), default=NODE, show_default=True, help="Share the node's CPUs, or get cores of one's own.")
@click.option(
    "--memory",
    type=click.Choice(MEMORIES),
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
    become(Asked(command, mode, memory, gpu, force, quiet))
