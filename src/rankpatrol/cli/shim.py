"""`rankpatrol shim`: one rank's parent, for launchers that start their ranks themselves."""

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say
from rankpatrol.core.errors import UsageProblem
from rankpatrol.launch.parent import SHIM, check_command

# These start ranks of their own, which get a shim by themselves.
_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"})


@click.command(short_help="Run one rank under patrol, for other launchers.", context_settings={"allow_interspersed_args": False})
@click.option(
    "--run-dir",
    type=GivenPath(),
    metavar="FOLDER",
    help="The job's run directory (job.json of its job directory names it).  [default: RANKPATROL_RUN_DIR, which `rankpatrol run` sets]",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def shim(run_dir: Path | None, command: tuple[str, ...]) -> NoReturn:
    """Run CMD as one rank under patrol: its log, its marks, its end held until the others' evidence is taken.

    The rank is found in RANK and WORLD_SIZE, else in what mpirun or srun set. Without a job, CMD runs as if nothing stood before it.

    \b
    rankpatrol run srun rankpatrol shim -- python train.py
    rankpatrol run mpirun -np 4 rankpatrol shim -- python train.py
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise UsageProblem("there is no command to run", help="Write it last: rankpatrol shim -- python train.py")
    check_command(words)
    if run_dir is not None:
        _say_what_is_missing(run_dir)
        os.environ["RANKPATROL_RUN_DIR"] = str(run_dir.absolute())
    if any(Path(word).name in _LAUNCHERS for word in words[:3]):
        os.execvp(words[0], words)  # ruff: ignore[S606] - no shell is wanted
    # torchrun stays as long as its ranks; of other launchers that is not known (0, see launch/shim/parent.py).
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0
    # A fresh Python without click and all else: it stays as long as the rank.
    os.execv(sys.executable, [sys.executable, "-I", "-S", str(SHIM), str(launcher), *words])  # ruff: ignore[S606] - no shell is wanted


def _say_what_is_missing(run_dir: Path) -> None:
    """CMD runs all the same: the patrol holds nobody up. But whoever named a folder that is none wants to know."""
    if not (run_dir / "job.json").is_file():
        say(f"rankpatrol: {run_dir} is no run directory of a job on this machine (no job.json in it): CMD runs without patrol", err=True)
