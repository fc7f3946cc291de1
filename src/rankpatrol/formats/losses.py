"""The loss that a log line tells, and whether it is a number at all: one row a form."""

import math
import re

from rankpatrol.core.records import Record

_VALUE = r"(?P<value>[-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?))(?![\w.%])"
PATTERNS = (
    # Own loops, nanoGPT, torchtitan, HF ({'loss': nan}), Megatron (lm loss: NAN), Lightning's bars (train_loss=nan.0), JSON ("loss": NaN).
    rf"(?<![a-z0-9-])loss['\"]?\s*[:=|]?\s*['\"]?(?:tensor\()?{_VALUE}",
)
_COMPILED = tuple(re.compile(pattern, re.IGNORECASE) for pattern in PATTERNS)
# What is told beside the loss and is none: a scaler's factor, a count, a limit.
_OTHERS = re.compile(r"(?<![a-z])(?:best|min|max|target|threshold|no|without|skip\w*)[ _-]*(?:\w+[ _])?$", re.IGNORECASE)


class LossMark(Record, frozen=True):
    """A loss as it was written; `lost`: it is no finite number."""

    text: str
    lost: bool


def find_loss(line: str) -> LossMark | None:
    """The first loss of this line that is no number, else its first loss; None where it tells none."""
    if "loss" not in line.lower():
        return None
    marks = [_mark(found["value"]) for regex in _COMPILED for found in regex.finditer(line) if not _OTHERS.search(line[: found.start()])]
    return next((mark for mark in marks if mark.lost), marks[0] if marks else None)


def _mark(text: str) -> LossMark:
    return LossMark(text.lower(), not math.isfinite(float(text)))
