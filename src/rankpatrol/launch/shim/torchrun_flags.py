"""What a command tells torchrun. The words are read, never changed."""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Sequence, Tuple

# torchrun's flags that take no value, in any version from 2.0 to 2.13; every other flag takes one.
WITHOUT_VALUE = frozenset({"--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--help"})
SHORT_WITHOUT_VALUE = frozenset({"m", "h"})
_MODULES = frozenset({"-mtorch.distributed.run", "-mtorch.distributed.launch"})


def torchruns_words(command: Sequence[str]) -> Optional[List[str]]:
    """What stands behind torchrun itself, or None where it is not there."""
    for at, word in enumerate(command):
        started = f"-m{word}" if at and command[at - 1] == "-m" else word
        # pip installs `torchrun`; some distributions add their interpreter's version to it.
        if started in _MODULES or os.path.basename(word).rstrip("0123456789.") == "torchrun":
            return list(command[at + 1 :])
    return None


def read_flags(words: Sequence[str]) -> Tuple[Dict[str, str], List[str]]:
    """The flags by their whole names with their last values ("" for none), and the program with its words, which are its own."""
    flags: Dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        names, value = _read(word)
        if value is None:
            value = left.pop(0) if left else ""
        flags.update(dict.fromkeys(names, ""))
        flags[names[-1]] = value
    return flags, left


def _read(word: str) -> Tuple[List[str], Optional[str]]:
    """The flag or flags of one word and the last one's value, "" for a flag without one; None: it is the next word."""
    if word.startswith("--"):
        name, is_given, value = word.partition("=")
        name = name.replace("_", "-")
        return [name], value if is_given or name in WITHOUT_VALUE else None
    # `-mr 3`: letters without a value may stand together, the last one's value behind them or in the next word (argparse).
    for at, letter in enumerate(word[1:], 1):
        if letter not in SHORT_WITHOUT_VALUE:
            return ["-" + each for each in word[1 : at + 1]], word[at + 1 :] or None
    return ["-" + letter for letter in word[1:]], ""
