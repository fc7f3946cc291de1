"""Whom the doctor looks at: this machine, the Python that a training here would use, and a running job where one was named."""

import shlex
import shutil
from pathlib import Path

from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import Marks
from rankpatrol.launch.rundir import JobSpec


class JobFacts(Record, frozen=True, kw_only=True):
    """A running job: what it was asked, and what each rank of its newest attempt marks."""

    spec: JobSpec
    marks: dict[int, Marks | Missing]
    pids: tuple[int, ...]


class Subject(Record, frozen=True, kw_only=True):
    """`python` is the interpreter of a training, and `python_by` how it was found; `environment` is what a training would start with."""

    python: str | Missing
    python_by: str
    environment: dict[str, str]
    job: JobFacts | None = None


def training_python(path: str | None = None) -> tuple[str | Missing, str]:
    """The interpreter that torchrun here would use, else the first on PATH, and how it was found."""
    torchrun = shutil.which("torchrun", path=path)
    if torchrun is not None and (python := _interpreter(Path(torchrun))) is not None:
        return python, f"the first line of {torchrun}"
    for word in ("python", "python3"):
        if (found := shutil.which(word, path=path)) is not None:
            return found, f"`{word}` on PATH"
    return Missing("there is no Python on PATH"), "PATH"


def _interpreter(script: Path) -> str | None:
    """The interpreter in a script's first line; pip writes `#!/bin/sh` and the path into the second where it is too long."""
    try:
        with script.open("rb") as file:
            first, second = file.readline(4096).decode(errors="replace"), file.readline(4096).decode(errors="replace")
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words and Path(words[0]).name == "env" and len(words) > 1:
        return shutil.which(words[-1])
    if words and Path(words[0]).name == "sh" and second.startswith("'''exec'"):
        words = shlex.split(second.removeprefix("'''exec'"))
    return words[0] if words and Path(words[0]).name.startswith("python") else None
