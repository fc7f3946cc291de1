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
# Losses that are not trained on: nan stands in for them until they are first taken, and their numbers say nothing of the training's.
_ASIDE = re.compile(
    r"(?<![a-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev|aux(?:iliary)?)(?:\W|_)*(?:[a-z]+[_/])?$", re.IGNORECASE
)
# `loss` by itself, or the whole of it: where that is a number, none of its parts is lost (kl_loss=nan, not used).
_WHOLE = re.compile(r"(?:^|[^\w/.-]|(?<![a-z])(?:train(?:ing)?|total|lm)[_/.-])$", re.IGNORECASE)
# So many characters before a loss say whose it is.
_BEFORE = 40


class LossMark(Record, frozen=True):
    """A loss as it was written; `lost`: it is no finite number."""

    text: str
    lost: bool


def find_loss(line: str) -> LossMark | None:
    """The training's loss: the first that is no number, else the first; None where it tells none."""
    if "loss" not in line.lower():
        return None
    found = [each for regex in _COMPILED for each in regex.finditer(line)]
    told = [(line[max(0, each.start() - _BEFORE) : each.start()], _mark(each["value"])) for each in found]
    told = [(before, mark) for before, mark in told if not _OTHERS.search(before) and not _ASIDE.search(before)]
    marks = [mark for before, mark in told if _WHOLE.search(before)] or [mark for _, mark in told]
    return next((mark for mark in marks if mark.lost), marks[0] if marks else None)


def _mark(text: str) -> LossMark:
    return LossMark(text.lower(), not math.isfinite(float(text)))
