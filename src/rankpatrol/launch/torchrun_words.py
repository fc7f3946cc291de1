"""What CMD tells torchrun, as far as it decides whether its ranks start below a shim. The words are read, never changed."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from rankpatrol.core.records import Record
from rankpatrol.launch.shim.deadlines import SHORT_WITHOUT_VALUE, WITHOUT_VALUE

# Those with which torchrun does not ask for an interpreter, where the shim stands.
PAST_THE_SHIM = ("--no-python", "--run-path")
_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})


class PastShim(Record, frozen=True):
    """torchrun starts its ranks itself: which flag (or variable) says so, and the program that it starts."""

    by: str
    program: str


def past_the_shim(command: Sequence[str], environment: Mapping[str, str]) -> PastShim | None:
    """How this command's ranks start without a shim, or None where they start below one, or no torchrun is seen in it."""
    words = torchruns_words(command)
    if words is None:
        return None
    flags, program = split(words)
    if not program or program[:2] == ["rankpatrol", "shim"]:
        return None
    given = [flag for flag in PAST_THE_SHIM if flag in flags]
    # A flag that is left out is looked up in the environment (torch/distributed/argparse_util.py).
    given += [name for name in map(_variable, PAST_THE_SHIM) if environment.get(name, "0") not in {"", "0"}]
    return PastShim(given[0], program[0]) if given else None


def torchruns_words(command: Sequence[str]) -> list[str] | None:
    """What stands behind torchrun itself, or None where it is not there."""
    for at, word in enumerate(command):
        if PurePath(word).name == "torchrun" or (word in _MODULES and at and command[at - 1] == "-m"):
            return list(command[at + 1 :])
    return None


def split(words: Sequence[str]) -> tuple[set[str], list[str]]:
    """The flags by their whole names, and the program with its words, which are its own."""
    flags: set[str] = set()
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        found, takes_value = _read(word)
        flags.update(found)
        if takes_value and left:
            left.pop(0)
    return flags, left


def _read(word: str) -> tuple[list[str], bool]:
    """The flag or flags of one word, and whether the next word is the value of it."""
    if word.startswith("--"):
        name, is_given, _ = word.partition("=")
        name = name.replace("_", "-")
        return [name], not is_given and name not in WITHOUT_VALUE
    # `-mr 3`: letters without a value may stand together, the last one's value behind them or in the next word (argparse).
    for at, letter in enumerate(word[1:], 1):
        if letter not in SHORT_WITHOUT_VALUE:
            return ["-" + each for each in word[1 : at + 1]], at == len(word) - 1
    return ["-" + letter for letter in word[1:]], False


def _variable(flag: str) -> str:
    return "PET_" + flag[2:].replace("-", "_").upper()
