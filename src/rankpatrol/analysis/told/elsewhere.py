"""What a rank was doing while the others waited for it: the phases, ends of data and faults that its own lines tell."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import quote
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind
from rankpatrol.formats.log_ledger import Told


class Elsewhere(Record, frozen=True, kw_only=True):
    """A rank's other business. `rank` is None where the lines do not say whose it is."""

    rank: int | None
    cause: str
    phrase: str
    reasons: tuple[str, ...]
    suggested: tuple[str, ...]


class _Business(Record, frozen=True):
    alone: str
    together: str
    phrase: str
    suggested: tuple[str, ...]


_LONGER = "Give init_process_group a longer timeout than this takes (NCCL_TIMEOUT is not read by torch)"
# By phase: the cause where one rank does it and the others wait, and where all may do it, one longer than another.
BUSINESS = {
    "preprocessing": _Business(
        "rank0_preprocessing", "rank0_preprocessing", "it prepared data", (_LONGER, "or prepare the data before, in a job of its own")
    ),
    "evaluating": _Business("rank0_eval", "long_eval", "it evaluated", (_LONGER, "or evaluate on all ranks alike")),
    "saving": _Business(
        "checkpoint_io_slow", "checkpoint_io_slow", "it saved a checkpoint", (_LONGER, "or save asynchronously, to faster storage")
    ),
    "loading": _Business("model_load", "model_load", "it loaded a model", (_LONGER, "or load from local disks")),
    "downloading": _Business("download_stall", "download_stall", "it downloaded", ("Download before the job starts, once a node", _LONGER)),
    "compiling": _Business(
        "compile_or_jit", "compile_or_jit", "it compiled", (_LONGER, "or warm the compile cache before (TORCHINDUCTOR_CACHE_DIR)")
    ),
}
_ENDED = ("Give all ranks the same number of batches (drop_last, even sharding), or use the Join context manager",)
_SYMPTOMS = {
    "fs_stall": ("filesystem_stall", "its file system did not answer", ("Check the file system that the job reads from, on that node",)),
    "hung_task": (
        "filesystem_stall",
        "the kernel saw a process blocked on storage",
        ("Check the storage of that node; the kernel's log names the process",),
    ),
    "download_failed": ("download_stall", "it waited for a download", ("Download before the job starts, and set HF_HUB_OFFLINE=1",)),
    "fork_warning": (
        "data_loader_fork_lock",
        "its loader processes may hang on a lock inherited over fork",
        ("Use multiprocessing_context='spawn' or 'forkserver'",),
    ),
}


def elsewhere(story: Story, missing: tuple[int, ...]) -> Elsewhere | None:
    """What the missing rank did; or, where nobody is known to be missing, what a rank that does not wait was doing."""
    return _data_ended(story, missing) or _symptom(story, missing) or _phase(story, missing)


def _eligible(story: Story, told: Told, missing: tuple[int, ...]) -> bool:
    """Of a missing rank, or of nobody in particular; never of one that waits itself."""
    rank = told.last.teller.rank
    if missing:
        return rank is None or rank in missing
    return rank is None or rank not in {wait.rank for wait in story.waits} or told.first.word == "evaluating"


def _data_ended(story: Story, missing: tuple[int, ...]) -> Elsewhere | None:
    ended = [told for told in story.told(Kind.DATA_ENDED, "epoch", "data", "iteration") if told.last.teller.rank is not None]
    ranks = {told.last.teller.rank for told in ended}
    lengths = {told.last.teller.rank: told.last.values["batches"] for told in story.told(Kind.DATA_ENDED) if "batches" in told.last.values}
    waiting = {wait.rank for wait in story.waits}
    uneven = len(set(lengths.values())) > 1
    if len(ranks) != 1 and not (missing and ranks == set(missing)):
        return _lengths(lengths) if uneven else None
    rank = next(iter(ranks))
    if (missing and rank not in missing) or rank in waiting:
        return None
    return Elsewhere(
        rank=rank,
        cause="uneven_inputs",
        phrase="its data had ended, and the data of the others had not",
        reasons=tuple(quote(told.last) for told in ended[:2]),
        suggested=_ENDED,
    )


def _lengths(lengths: dict[int | None, str]) -> Elsewhere | None:
    numbers = {rank: int(text) for rank, text in lengths.items() if rank is not None and text.isdigit()}
    if len(set(numbers.values())) < 2:
        return None
    least = min(numbers.values())
    fewest = [rank for rank, number in numbers.items() if number == least]
    return Elsewhere(
        rank=fewest[0] if len(fewest) == 1 else None,
        cause="uneven_inputs",
        phrase=f"the ranks have different numbers of batches ({least} to {max(numbers.values())})",
        reasons=(f"batches by rank: {', '.join(f'{rank}: {number}' for rank, number in sorted(numbers.items())[:8])}",),
        suggested=_ENDED,
    )


def _symptom(story: Story, missing: tuple[int, ...]) -> Elsewhere | None:
    for told in story.told(Kind.SYMPTOM, *_SYMPTOMS):
        if not _eligible(story, told, missing):
            continue
        cause, phrase, suggested = _SYMPTOMS[told.first.word]
        return Elsewhere(rank=told.first.teller.rank, cause=cause, phrase=phrase, reasons=(quote(told.first),), suggested=suggested)
    return None


def _phase(story: Story, missing: tuple[int, ...]) -> Elsewhere | None:
    told = last_phase(story, missing)
    if told is None:
        return None
    business = BUSINESS[told.last.word]
    rank = told.last.teller.rank
    alone = rank is not None or bool(missing)
    subject = business.phrase if alone else business.phrase.replace("it ", "a rank ", 1)
    return Elsewhere(
        rank=rank,
        cause=business.alone if alone else _together(story, business),
        phrase=subject + (f" ({fraction(told.last)})" if fraction(told.last) else ""),
        reasons=(quote(told.last),),
        suggested=business.suggested,
    )


def _together(story: Story, business: _Business) -> str:
    """Where a limit was set that torch does not read, the limit is what is wrong."""
    if story.says(Kind.SETTING, "nccl_timeout_env"):
        return "timeout_too_short"
    return business.together


def last_phase(story: Story, ranks: tuple[int, ...] = ()) -> Told | None:
    """The last phase that was still going on: no counter came after it, and it was not said to be over."""
    over = {
        "saving": "saved", "loading": "loaded", "compiling": "compiled", "preprocessing": "prepared", "downloading": "downloaded",
        "evaluating": "evaluated",
    }  # fmt: skip
    last_of = {(told.last.word, told.last.where.file): told.last.order for told in story.told(Kind.PHASE)}
    found = [
        told
        for told in story.told(Kind.PHASE, *BUSINESS)
        if _eligible(story, told, ranks)
        and not story.counted_after(told.last)
        and last_of.get((over.get(told.last.word, ""), told.last.where.file), -1) < told.last.order
    ]
    return max(found, key=lambda told: told.last.order, default=None)


def fraction(fact: Fact) -> str:
    """`17 of 30`, `45 %`, or nothing."""
    if "done" in fact.values and "total" in fact.values:
        return f"{fact.values['done']} of {fact.values['total']}"
    if "percent" in fact.values:
        return f"{fact.values['percent']} %"
    return fact.values.get("count", "")
