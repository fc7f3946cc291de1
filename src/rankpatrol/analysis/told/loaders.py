"""Loader processes that were killed, vanished or do not answer."""

import re

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import named, quote, who
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Fact, Kind

_LOCAL_RANK = re.compile(r"--local[_-]rank[= ']+(\d+)")


def loader_died(story: Story) -> Diagnosis | None:
    """A loader process killed by the kernel or for want of shared memory; or one that does not deliver."""
    dead = story.told(Kind.LOADER_DIED)
    if not dead:
        return _silent_loader(story)
    fact = dead[0].first
    cause, phrase, suggested = _how(story, [told.first for told in dead])
    rank = _rank(story, fact)
    if len({told.first.teller.rank for told in dead}) > 1:
        rank = None  # several ranks lost theirs: the memory, or its lack, is the job's
    kills = story.told(Kind.KILLED_BY_KERNEL)
    return Diagnosis(
        verdict=story.verdict(),
        cause=cause,
        culprit_ranks=named(rank),
        certainty=Certainty.PROVED if kills and cause == "data_worker_killed_oom" else Certainty.SUPPORTED,
        sentence=f"loader process {fact.values.get('pid', '?')} of {who(rank, fact.teller.local_rank)} {phrase}",
        reasons_for=(quote(fact), *(quote(told.first) for told in kills[:1])),
        reasons_against=("the Python line above it is where the signal arrived, not the place of the fault",),
        suggested=suggested,
    )


def _how(story: Story, facts: list[Fact]) -> tuple[str, str, tuple[str, ...]]:
    signals = " ".join(fact.values.get("signal_words", "") for fact in facts)
    shm = story.told(Kind.SYMPTOM, "shm_too_small")
    if "Bus error" in signals or (shm and "Killed" not in signals):
        return (
            "data_worker_killed_shm",
            "died of a full /dev/shm",
            (
                "Give the job more shared memory (--shm-size, --ipc=host, an emptyDir of medium Memory)",
                "or fewer loader processes, or a smaller prefetch_factor",
            ),
        )
    if "Killed" in signals or story.says(Kind.KILLED_BY_KERNEL) or story.says(Kind.SCHEDULER, "oom"):
        return (
            "data_worker_killed_oom",
            "was killed, most likely for want of host memory",
            (
                "Give the job more host memory, fewer loader processes, or a smaller prefetch_factor",
                "Confirm with the kernel's log or the cgroup's memory.events",
            ),
        )
    if "Segmentation fault" in signals:
        return "sigsegv", "died of a segmentation fault", ("Run with num_workers=0 and faulthandler to see where",)
    return (
        "unknown",
        "vanished; of what is not said",
        ("Look into the kernel's log for that pid, and run with num_workers=0 to see its own error",),
    )


def _rank(story: Story, fact: Fact) -> int | None:
    rank = story.rank_of(fact.teller, fact)
    if rank is not None:
        return rank
    # The old launcher names the rank that failed in its command line alone; a local rank, and the only one that failed.
    locals_named = {seen[1] for failure in story.exceptions if (seen := _LOCAL_RANK.search(failure.message))}
    if len(locals_named) == 1 and story.one_node:
        return int(locals_named.pop())
    table = [end for end in story.ends if end.first or end.fact.word == "row_rank"]
    return table[0].rank if len(table) == 1 else None


def _silent_loader(story: Story) -> Diagnosis | None:
    told = story.told(Kind.SYMPTOM, "loader_timeout")
    if not told:
        return None
    rank = story.rank_of(told[0].first.teller, told[0].first)
    return Diagnosis(
        verdict=story.verdict(),
        cause="data_loader_worker_stuck",
        culprit_ranks=named(rank),
        certainty=Certainty.SUPPORTED,
        sentence=f"a loader process of {who(rank)} delivered nothing until the loader's own time-out",
        reasons_for=tuple(quote(each.first) for each in told[:2]),
        suggested=(
            "Look what that loader process reads (`rankpatrol capture --pid PID` while it is stuck)",
            "Test the storage, and that sample alone with num_workers=0",
        ),
    )
