"""What CMD tells torchrun, as far as it decides whether its ranks start below a shim. The words are read, never changed."""

from collections.abc import Mapping, Sequence

from rankpatrol.core.records import Record
from rankpatrol.launch.shim.torchrun_flags import read_flags, torchruns_words

# Those with which torchrun does not ask for an interpreter, where the shim stands.
PAST_THE_SHIM = ("--no-python", "--run-path")


class PastShim(Record, frozen=True):
    """torchrun starts its ranks itself: which flag (or variable) says so, and the program that it starts."""

    by: str
    program: str


def past_the_shim(command: Sequence[str], environment: Mapping[str, str]) -> PastShim | None:
    """How this command's ranks start without a shim, or None where they start below one, or no torchrun is seen in it."""
    words = torchruns_words(command)
    if words is None:
        return None
    flags, program = read_flags(words)
    if not program or program[:2] == ["rankpatrol", "shim"]:
        return None
    given = [flag for flag in PAST_THE_SHIM if flag in flags]
    # A flag that is left out is looked up in the environment (torch/distributed/argparse_util.py).
    given += [name for name in map(_variable, PAST_THE_SHIM) if environment.get(name, "0") not in {"", "0"}]
    return PastShim(given[0], program[0]) if given else None


def _variable(flag: str) -> str:
    return "PET_" + flag[2:].replace("-", "_").upper()
