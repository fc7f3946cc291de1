"""A rank under the probe, with the test in the place of its shim."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rankpatrol.collect.marks import read_marks
from rankpatrol.collect.told_stacks import StackPipe
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import Marks
from rankpatrol.launch.shim.marks import Held, with_probe
from rankpatrol.system.process import identify

# torch, as far as the probe follows it, for Pythons without it.
SAVES = "def save(work):\n    return work()\n"


class Rank(Record, frozen=True):
    """A started rank, told to go on by a line on its standard input."""

    process: "subprocess.Popen[str]"
    held: Held

    def marks(self) -> Marks | Missing:
        shim = identify(os.getpid())
        assert shim is not None
        return read_marks(shim, self.held.marks_fd)

    def seen(self) -> Marks:
        found = self.marks()
        assert isinstance(found, Marks), found
        return found

    def pipe(self) -> StackPipe:
        shim, rank = identify(os.getpid()), identify(self.process.pid)
        assert shim is not None
        assert rank is not None
        assert self.held.stacks_fd is not None
        return StackPipe(shim=shim, fd=self.held.stacks_fd, marks_fd=self.held.marks_fd, rank=rank)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[str, str]:
        """The rest of its output and errors."""
        return self.process.communicate(timeout=15)


def plain_environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def end_by_itself() -> None:
    """Whatever a test leaves behind goes by SIGALRM."""
    signal.alarm(60)


def close(held: Held) -> None:
    """Our side of all that the probe was given."""
    for descriptor in {*held.inherited(), held.stacks_fd} - {None}:
        os.close(descriptor)


@contextmanager
def ranked(
    words: list[str],
    folder: Path,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    leads_session: bool = True,
) -> Iterator[Rank]:
    """`python WORDS…` as a rank; `env` is its user's environment."""
    environment, held = with_probe(plain_environment() if env is None else env, str(folder), str(folder / "probe.sock"))
    assert held is not None
    with subprocess.Popen(
        [python, *words],
        env=environment,
        pass_fds=held.inherited(),
        start_new_session=leads_session,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_by_itself,  # ruff: ignore[PLW1509] - it only sets an alarm
    ) as process:
        try:
            yield Rank(process, held)
        finally:
            process.kill()
            close(held)


def stand_in_torch(folder: Path, saves: str = SAVES) -> str:
    """A folder for PYTHONPATH with a `torch.serialization` of a few lines."""
    package = folder / "stand-in" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "serialization.py").write_text(saves)
    return str(package.parent)
