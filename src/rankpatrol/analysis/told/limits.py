"""Limits of the machine that were reached: descriptors, shared memory, ports, disks."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import named, quote, ranks_words
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind


class _Limit(Record, frozen=True):
    """One limit. `one_rank`: it is a matter of the rank that meets it; otherwise of the machine or the job as a whole."""

    cause: str
    phrase: str
    one_rank: bool
    suggested: tuple[str, ...]


_LIMITS = {
    "fd_exhaustion": _Limit(
        "fd_exhaustion",
        "reached the limit of open files",
        True,
        ("Raise it (`ulimit -n 65536`)", "or share tensors by files: torch.multiprocessing.set_sharing_strategy('file_system')"),
    ),
    "shm_too_small": _Limit(
        "shm_too_small",
        "found /dev/shm full or too small",
        False,
        (
            "Give the job more shared memory (--shm-size, --ipc=host, an emptyDir of medium Memory)",
            "Remove what killed jobs of this user left in /dev/shm",
        ),
    ),
    "port_in_use": _Limit(
        "port_in_use",
        "found its port taken",
        False,
        (
            "Take another port (`--rdzv-endpoint HOST:0`, a MASTER_PORT of your own)",
            "Look who holds it (`ss -ltnp`): often what is left of the last attempt",
        ),
    ),
    "disk_full": _Limit(
        "disk_full",
        "found the disk full",
        False,
        ("Make room, or write checkpoints elsewhere; check the newest one (`rankpatrol checkpoints verify`)",),
    ),
}


def limit_reached(story: Story) -> Diagnosis | None:
    """The first limit that a line names; what fails after it is its consequence."""
    found = [
        told for told in story.told(Kind.SYMPTOM, *_LIMITS) if not (told.first.word == "shm_too_small" and story.says(Kind.LOADER_DIED))
    ]
    full, written = story.told(Kind.SYMPTOM, "df_full"), story.told(Kind.SYMPTOM, "write_failed")
    if not found and full and written and not _goes_on_after(story, written[-1].last):
        # A full disk alone may be anybody's; a write that failed says whose it is.
        return _say(story, _LIMITS["disk_full"], [written[0].first, full[0].first])
    if not found:
        return None
    # What is full, /dev/shm or a disk, is said by the path: the exact word goes before the general one of the same line.
    words = [told.first.word for told in found]
    word = "shm_too_small" if words[0] == "disk_full" and "shm_too_small" in words else words[0]
    facts = [told.first for told in found if told.first.word == word]
    limit = _LIMITS[word]
    if limit.cause == "port_in_use" and (story.waits or story.pace is not None):
        return None  # a warning of the start that the job survived
    if word == "disk_full" and _goes_on_after(story, facts[0]):
        return None
    return _say(story, limit, facts)


def _goes_on_after(story: Story, fact: Fact) -> bool:
    return story.counted_after(fact)


def _say(story: Story, limit: _Limit, facts: list[Fact]) -> Diagnosis:
    ranks = sorted({rank for fact in facts if (rank := story.rank_of(fact.teller, fact)) is not None})
    one = ranks[0] if len(ranks) == 1 and limit.one_rank else None
    subject = ranks_words(ranks) if ranks else "a process of the job"
    settings = [told.first for told in story.told(Kind.SETTING, "open_files", "shm_size")]
    return Diagnosis(
        verdict=story.verdict(),
        cause=limit.cause,
        culprit_ranks=named(one),
        certainty=Certainty.PROVED if settings and one is not None else Certainty.SUPPORTED,
        sentence=f"{subject} {limit.phrase}; what failed after it is the consequence",
        reasons_for=(*(quote(fact) for fact in facts[:2]), *(quote(fact) for fact in settings[:1])),
        reasons_against=() if limit.one_rank else ("it is the machine's or the job's limit: the rank that met it first is not to blame",),
        suggested=limit.suggested,
    )
