"""Whether CMD trains by itself, or may start ranks below shims, which fill {checkpoint} in. Nothing is run to find out."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from rankpatrol.launch.shim.torchrun_flags import torchruns_words

# Launchers, schedulers' starters, shells and build tools: what they start may be torchrun, or `rankpatrol shim`.
_STARTERS = frozenset(
    {"srun", "sbatch", "salloc", "mpirun", "mpiexec", "orterun", "prun", "prterun", "jsrun", "aprun", "accelerate", "deepspeed", "ray"}
    | {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "make", "ssh", "docker", "podman", "apptainer", "singularity"}
    | {"xargs", "parallel", "rankpatrol"}
)
_STARTING_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.", "rankpatrol", "lightning.", "ray.")
_PYTHON = re.compile(r"python[\d.]*t?")
_PYTHONS_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_FIRST_LINE_BYTES = 256


def is_plain(command: Sequence[str]) -> bool:
    """True where no shim will stand between us and the training. Of what may start one, and of what cannot be told, it is False."""
    if torchruns_words(command) is not None:
        return False
    if _PYTHON.fullmatch(Path(command[0]).name):
        return _runs_itself(command[1:])
    if command[0].endswith(".py"):
        return True
    return not any(_starts(word) for word in command) and not _is_script(command[0])


def _runs_itself(words: Sequence[str]) -> bool:
    """Of an interpreter's words: a script, a text or a module that is no launcher. What comes behind those is theirs."""
    left = list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word.startswith("-c"):
            return True
        if word.startswith("-m"):
            return not (word[2:] or "".join(left[:1])).startswith(_STARTING_MODULES)
        if word in _PYTHONS_OPTIONS_WITH_VALUE:
            del left[:1]
    return not left or not _starts(left[0])


def _starts(word: str) -> bool:
    name = Path(word).name
    return name in _STARTERS or name.endswith(".sh") or word.startswith(_STARTING_MODULES[0])


def _is_script(word: str) -> bool:
    """One with an interpreter's line may call anything; so may what cannot be read."""
    try:
        with Path(shutil.which(word) or word).open("rb") as file:
            return file.read(_FIRST_LINE_BYTES).startswith(b"#!")
    except OSError:
        return True
