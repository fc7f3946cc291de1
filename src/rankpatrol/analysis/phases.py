"""Legitimate long phases that the names of functions show: evaluation, preprocessing, loading a model, saving."""

import re

from rankpatrol.analysis.frames import plain_name
from rankpatrol.core.snapshot import Frame, ThreadStack


# Words of function names, in the taxonomy's causes. The innermost frame that has one speaks; a frame of training ends the search,
# since whoever trains below `train_and_evaluate` does not evaluate.
def _meaning(cause: str, words: str) -> dict[str, str]:
    return dict.fromkeys(words.split(), cause)


_WORDS = {
    **_meaning("rank0_eval", "eval evaluate evaluation validate validation val valid predict score benchmark evaluator"),
    **_meaning("rank0_preprocessing", "tokenize tokenization preprocess preprocessing prepare shuffle indexing featurize"),
    **_meaning("checkpoint_io_slow", "checkpoint checkpoints ckpt"),
}
_NAMES = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (
            r"^_*(save|consolidate|export|dump)_(model|pretrained|state|weights|full|sharded|hf|final|optimizer)|^_save$",
            "checkpoint_io_slow",
        ),
        (
            r"^(load|resume)_(checkpoint|ckpt|state_dict)|^_load_(checkpoint|state)|^from_pretrained$|^load_(pretrained|model|weights)",
            "model_load",
        ),
        (
            r"build_.*(index|idx|dataset|vocab|mapping|sample|cache)|^(get|load|make|create|pack)_dataset|download_and_prepare",
            "rank0_preprocessing",
        ),
        (r"^(iflatmap_unordered|_map_single|map_with_multiprocess)$", "rank0_preprocessing"),
    )
)
_TRAINING = frozenset({"train", "training", "fit", "trainer"})
_SKIPPED = ("/torch/", "/lib/python3", "<frozen ")
_FOLDERS = {"eval": "rank0_eval", "evaluation": "rank0_eval", "validation": "rank0_eval"}
_DATASETS = re.compile(r"datasets/(arrow_dataset|builder|dataset_dict|load|utils/py_utils)\.py$")


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _of_frame(frame: Frame) -> str | None:
    name = plain_name(frame)
    if _DATASETS.search(frame.file):
        return "rank0_preprocessing"
    if (known := next((cause for pattern, cause in _NAMES if pattern.search(name)), None)) is not None:
        return known
    words = _words(name)
    if (known := next((_WORDS[word] for word in words if word in _WORDS), None)) is not None and not _TRAINING & set(words):
        return "model_load" if known == "checkpoint_io_slow" and "load" in words else known
    return next((_FOLDERS[part] for part in frame.file.lower().split("/")[:-1] if part in _FOLDERS), None)


def phase_cause(thread: ThreadStack) -> str | None:
    """The cause word of the phase a stack stands in, or None where it is in none that its names tell."""
    for frame in thread.frames:
        if any(part in frame.file for part in _SKIPPED):
            continue
        if (found := _of_frame(frame)) is not None:
            return found
        if _TRAINING & set(_words(plain_name(frame))):
            return None
    return None
