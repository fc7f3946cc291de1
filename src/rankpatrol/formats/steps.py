"""The step that a log line has reached: one row a source, strongest first."""

import re
from enum import IntEnum

from rankpatrol.core.records import Record


class Strength(IntEnum):
    """How surely a number counts optimizer steps over the whole run; the higher one is believed where a log holds several."""

    PROGRESS_BAR = 1
    EPOCH_AND_BATCH = 2
    STEP = 3
    GLOBAL_STEP = 4


class StepMark(Record, frozen=True):
    """A step named by a line, and by which kind of counter."""

    step: int
    strength: Strength


class StepPattern(Record, frozen=True):
    """One source. Groups: `n` the counter, and where the counter starts anew each epoch `epoch` (from 0) and `total`."""

    source: str
    strength: Strength
    regex: str


# A number that is no part of a longer one, of a decimal, a clock or a date, and carries no unit of time or size.
_N = r"(?P<n>\d{1,12})(?!\d|[:.,-]\d)(?!\s?(?:[kmgt]?i?b|bytes?|[mun]?s|secs?|seconds?|minutes?|min)\b|\s?%)"

PATTERNS = (
    StepPattern(
        "global step: Lightning, DeepSpeed, HF, own loops",
        Strength.GLOBAL_STEP,
        rf"(?<![\w.-])global[ _-]?step(?:['\"]?\s*[:=]\s*['\"]?|\s+){_N}",
    ),
    StepPattern("fairseq: num_updates=120, 'num_updates': '120'", Strength.GLOBAL_STEP, rf"\bnum_updates['\"]?\s*[:=]\s*['\"]?{_N}"),
    StepPattern("Megatron-LM: iteration      120/    5000", Strength.GLOBAL_STEP, rf"\biteration\s++{_N}\s*/\s*\d+"),
    StepPattern("JSON logs: 'step': 120", Strength.STEP, rf"['\"]_?(?:train[_/])?(?:step|iter|iteration)['\"]\s*:\s*['\"]?{_N}"),
    StepPattern("MMEngine: Iter(train) [ 120/5000]", Strength.STEP, rf"\bIter\(train\)\s*\[\s*{_N}\s*/\s*\d+\]"),
    StepPattern(
        "plain words, as nanoGPT, torchtitan, DeepSpeed: step 120, step=120, [step 120/5000], iter 120:",
        Strength.STEP,
        rf"(?<![\w./-])(?:train(?:ing)?[ _])?(?:step|iter|iteration)\s*+[:=#]?\s*+[\[(]?\s*+{_N}",
    ),
    StepPattern(
        "PyTorch ImageNet, timm, MMEngine: Epoch: [3][ 120/5004]",
        Strength.EPOCH_AND_BATCH,
        # Not the MNIST example's `Train Epoch: 3 [1280/60000`: that counts samples.
        rf"(?<!train )\b(?:epoch(?:\(train\))?|train)\s*+:?\s*+\[?(?P<epoch>\d+)\]?\s*+\[\s*+{_N}\s*/\s*(?P<total>\d+)",
    ),
    StepPattern(
        "Lightning's bars: Epoch 3:  24%|##  | 120/500 [00:12<00:38",
        Strength.EPOCH_AND_BATCH,
        rf"\bepoch:?\s+(?P<epoch>\d+)(?:/\d+)?\b[^\[\]]{{0,120}}?\b{_N}/(?P<total>\d+)\s+\[?\d+:\d\d",
    ),
    StepPattern(
        "tqdm and HF Trainer: 120/5000 [00:12<08:01, 10.1it/s]",
        Strength.PROGRESS_BAR,
        rf"(?<![\w.,/]){_N}/\d+ \[\d+:\d\d(?::\d\d)?<(?![^\]]*B/s)",
    ),
    StepPattern("tqdm without a total: 120it [00:12, 9.80it/s]", Strength.PROGRESS_BAR, r"(?<![\w.,/])(?P<n>\d{1,12})it \[\d+:\d\d"),
)

_COMPILED = tuple((re.compile(pattern.regex, re.IGNORECASE), pattern.strength) for pattern in PATTERNS)

# Nearly all lines of a noisy log end here: no pattern fits a line without one of these, or without a bar's `[` and `<`.
_HINTS = ("step", "iter", "num_updates", "epoch", "train", "it [")
_SIGN_OF_LIFE = re.compile(r"still (?:alive|waiting|running)|heart ?beat|\bhb\b|keep-?alive", re.IGNORECASE)
# What stands before the counter when it is a plan, a resume, or counts something else.
_NOT_REACHED = re.compile(
    r"\b(?:until|till|up to|to|at most|max(?:imum)?|total|every|from|after|next|last|per|of|resum\w*|load\w*|restor\w*|skip\w*|start\w*"
    r"|eval\w*|val\w*|test\w*|warm-?up|micro|sub|inner|sampl\w*|denois\w*)(?: (?:at|from|the))*[ :_-]{1,2}$",
    re.IGNORECASE,
)
_OTHER_BAR = re.compile(
    r"\b(?:download|load|fetch|map\b|filter|token|generat|eval|valid|sanity|test|predict|sav(?:e|ing)|upload|extract)", re.IGNORECASE
)


def find_step(line: str) -> StepMark | None:
    """The step this line has reached, by the strongest kind of counter in it; None where it advances none."""
    low = line.lower()
    if not (any(hint in low for hint in _HINTS) or ("[" in low and "<" in low)) or _SIGN_OF_LIFE.search(low):
        return None
    for regex, strength in _COMPILED:
        for found in regex.finditer(line):
            if not _counts_other_things(line, found, strength):
                return StepMark(_count(found.groupdict()), strength)
    return None


def further(seen: StepMark | None, new: StepMark | None) -> StepMark | None:
    """The mark that stands: of the stronger kind of counter, the higher one."""
    if seen is None or new is None:
        return seen or new
    return max(seen, new, key=lambda mark: (mark.strength, mark.step))


def _counts_other_things(line: str, found: re.Match[str], strength: Strength) -> bool:
    if strength <= Strength.EPOCH_AND_BATCH:
        return _OTHER_BAR.search(line, 0, found.start("n")) is not None
    return _NOT_REACHED.search(line[max(0, found.start() - 40) : found.start()]) is not None


def _count(groups: dict[str, str | None]) -> int:
    epoch, total = groups.get("epoch"), groups.get("total")
    count = int(groups["n"] or 0)
    return count if epoch is None or total is None else int(epoch) * int(total) + count
