"""A checkpoint file of Lightning: a torch file whose own step must be the one of its name.

See `dump_checkpoint` in lightning/pytorch/trainer/connectors/checkpoint_connector.py.
"""

import re
from typing import Final

from rankpatrol.checkpoints import torch_zip
from rankpatrol.checkpoints.inert_pickle import pairs_of
from rankpatrol.checkpoints.opened import OpenedFile, Readable
from rankpatrol.checkpoints.report import CheckpointVerdict, Judgement, Look, corrupt
from rankpatrol.checkpoints.torch_inside import TorchInside, inside_of
from rankpatrol.checkpoints.zip_directory import LOCAL

NAME = "lightning"
MARK: Final = "pytorch-lightning_version"
_HEAD_BYTES: Final = 1 << 16
_NAMED_STEP: Final = re.compile(r"(?<![a-z])step=(\d+)")


def matches(file: Readable) -> bool:
    """Whether a torch file names Lightning's version among the first things it says."""
    head = file.read_at(0, min(file.size_bytes, _HEAD_BYTES))
    return head.startswith(LOCAL) and MARK.encode() in head


def verify(file: Readable, look: Look) -> Judgement:
    """What the torch file says of itself, then whether its step is that of its name."""
    judgement = torch_zip.verify(file, look)
    if judgement.verdict is not CheckpointVerdict.OK or not isinstance(file, OpenedFile):
        return judgement
    return other_step(inside_of(file), file.path.name) or judgement


def other_step(inside: TorchInside | None, name: str) -> Judgement | None:
    """Damage where the step inside is not the one of the name, and what Lightning keeps inside of names tells of other files alone.

    A name may count something else: whoever logs a metric called `step` gets that one.
    """
    named = _NAMED_STEP.findall(name)
    step = None if inside is None else inside.number("global_step")
    # Before version 2 the step inside was ahead by one.
    if not named or step is None or inside is None or str(inside.at(MARK) or "").startswith(("0.", "1.")) or step == int(named[-1]):
        return None
    told = _names_in(inside.at("callbacks"))
    if not told or name in told:
        return None
    return corrupt(f"is the checkpoint of another step: its global_step is {step}", key="global_step")


def _names_in(value: object, deeper: int = 4) -> set[str]:
    """Every checkpoint's name among the keys and values of what the callbacks remember."""
    found: set[str] = set()
    for key, item in pairs_of(value):
        found |= {text.rpartition("/")[2] for text in (key, item) if isinstance(text, str) and text.endswith(".ckpt")}
        if deeper:
            found |= _names_in(item, deeper - 1)
    return found
