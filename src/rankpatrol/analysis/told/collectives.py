"""Collectives that ran into their time-out: who is missing there, and what that rank was doing instead.

A reporter is a victim, never the cause.
"""

from collections import Counter

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.story_ends import ranks_in
from rankpatrol.analysis.story_waits import Wait
from rankpatrol.analysis.told.elsewhere import Elsewhere, elsewhere
from rankpatrol.analysis.told.mismatches import absent_from_barrier
from rankpatrol.analysis.told.words import quote, ranks_words
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Kind

# A rank that ran this many collectives ahead of the stuck one is blocked on the device, not in its Python.
_FAR_AHEAD = 20
# Between two ranks, not of a whole group: the others do not take part, and numbers are the pair's own.
_FEW_REPORTERS = 3
_BETWEEN_TWO = frozenset({"SEND", "RECV", "send", "recv"})


class Missing(Record, frozen=True):
    """Ranks that did not come to a collective, and why that is believed."""

    ranks: tuple[int, ...]
    why: str
    strong: bool


def timed_out(story: Story) -> Diagnosis | None:
    """Somebody waited in vain: by statuses, by a barrier's own list, or by the one rank that reports nothing."""
    barrier = absent_from_barrier(story)
    if not story.waits and not barrier and not story.says(Kind.NAMED_LAGGING, ""):
        return None
    missing = _missing(story, barrier)
    where = elsewhere(story, missing.ranks if missing else ())
    if missing is None and where is not None and where.rank is not None and where.rank not in _heard(story):
        missing = Missing((where.rank,), "it is the only rank that is seen elsewhere", strong=False)
    return _named(story, missing, where) if missing else _unnamed(story, where)


def _reporters(story: Story) -> set[int]:
    return {wait.rank for wait in story.waits if wait.rank is not None}


def _heard(story: Story) -> set[int]:
    """Ranks that report an end of their own, by any of the watchdog's lines: none of them is the one that said nothing."""
    ranks = _reporters(story)
    ranks |= {status.rank for status in story.statuses if status.rank is not None and status.fact.word == ""}
    ranks |= {rank for told in story.told(Kind.GOING_DOWN) if (rank := story.rank_of(told.first.teller, told.first)) is not None}
    return ranks


def _missing(story: Story, barrier: tuple[int, ...]) -> Missing | None:
    if barrier:
        return Missing(barrier, "a monitored barrier names whom it missed", strong=True)
    lagging = {rank for told in story.told(Kind.NAMED_LAGGING, "") for rank in ranks_in(told.first.values.get("ranks", ""))}
    if lagging and len(lagging) < max(2, len(story.ranks)):
        return Missing(tuple(sorted(lagging)), "c10d's own desync report names whom it missed", strong=True)
    return _behind(story) or _not_heard(story) or _not_heard_in_group(story)


def _behind(story: Story) -> Missing | None:
    """Ranks whose last enqueued collective in a group lies before the one that the others time out in."""
    stuck: dict[str, int] = {}
    for wait in story.waits:
        # Without the group's name the numbers of two ranks may be of two groups.
        if wait.sequence is not None and wait.rank is not None and wait.operation not in _BETWEEN_TWO and wait.group not in {None, "?"}:
            group = "0" if wait.in_default_group() else wait.group or ""
            stuck[group] = max(stuck.get(group, 0), wait.sequence)
    ranks: set[int] = set()
    for group, sequence in stuck.items():
        enqueued = {status.rank: status.enqueued for status in story.statuses if (status.group or "0") == group and status.rank is not None}
        ranks |= {rank for rank, last in enqueued.items() if last < sequence and any(other >= sequence for other in enqueued.values())}
    ranks -= {wait.rank for wait in story.waits if wait.sequence == max(stuck.values(), default=0)}
    return (
        Missing(tuple(sorted(ranks)), "their last enqueued collective lies before the one that timed out", strong=True) if ranks else None
    )


def _not_heard(story: Story) -> Missing | None:
    """The only rank of all that does not report a time-out of a collective of all."""
    most = Counter((wait.sequence, wait.operation) for wait in story.waits if wait.rank is not None and wait.in_default_group())
    if not most or any(not wait.in_default_group() or wait.operation in _BETWEEN_TWO for wait in story.waits):
        return None
    reporters = _reporters(story)
    absent = story.ranks - _heard(story)
    if len(absent) != 1 or len(reporters) < 2:
        return None
    rank = next(iter(absent))
    exists = story.world_size is not None or rank in story.seen_ranks
    # A hole in the numbers is a rank, too; but of a pasted log with two reporters as much may be left out as is there.
    if not exists and not (rank < max(reporters) and len(reporters) >= _FEW_REPORTERS):
        return None
    return Missing((rank,), f"{ranks_words(reporters)} report a time-out, and it does not", strong=False)


def _not_heard_in_group(story: Story) -> Missing | None:
    """The only member of a group of some ranks that does not report, where a line lists the members."""
    members = {told.last.values["group"]: ranks_in(told.last.values["ranks"]) for told in story.told(Kind.MEMBERS)}
    reporters: dict[str, set[int]] = {}
    for wait in story.waits:
        if wait.group in members and wait.rank is not None and wait.operation not in _BETWEEN_TWO:
            reporters.setdefault(str(wait.group), set()).add(wait.rank)
    if len(reporters) != 1:
        return None
    group, ranks = next(iter(reporters.items()))
    absent = set(members[group]) - _heard(story)
    if len(absent) != 1 or len(ranks) < 2 or ranks - set(members[group]):
        return None
    return Missing(tuple(absent), f"of the group's members {ranks_words(ranks)} report a time-out, and it does not", strong=False)


def _named(story: Story, missing: Missing, where: Elsewhere | None) -> Diagnosis:
    cause = where.cause if where is not None else "rank_missing_collective"
    doing = f" while {where.phrase}" if where is not None else ""
    victims = tuple(sorted((_reporters(story) or story.ranks) - set(missing.ranks)))
    strong = missing.strong or where is not None
    return Diagnosis(
        verdict=story.verdict("hang"),
        cause=cause if strong or story.verdict("hang") == "hang" else "unknown",
        culprit_ranks=missing.ranks,
        victim_ranks=victims,
        certainty=Certainty.SUPPORTED if strong else Certainty.SUSPECTED,
        sentence=f"{ranks_words(missing.ranks)} did not come to {_collective(story)}{doing}; "
        f"{ranks_words(victims) if victims else 'the others'} waited until the time-out",
        reasons_for=(missing.why, *(where.reasons if where is not None else ()), *(quote(wait.fact) for wait in story.waits[:1])),
        reasons_against=() if strong else ("a rank whose log was cut, or that was killed before it could report, would look alike",),
        suggested=where.suggested if where is not None else ("Look at the code line of that rank: its flight recorder or stack tells it",),
    )


def _unnamed(story: Story, where: Elsewhere | None) -> Diagnosis:
    reporters = tuple(sorted(_reporters(story)))
    cause, phrase = "unknown", "who was missing there is not said"
    suggested: tuple[str, ...] = ("Add the other ranks' logs; a flight recorder dump names who was missing",)
    reasons = [quote(wait.fact) for wait in story.waits[:2]]
    if where is not None:
        cause, phrase, suggested = where.cause, where.phrase, where.suggested
        reasons += where.reasons
    elif (set_s := _set_timeout_s(story)) is not None:
        cause = "timeout_too_short"
        phrase = f"{say_duration(set_s)} had been set, and that setting did not reach this group"
        suggested = ("Give the time-out to init_process_group and to each new_group: a group of its own has the default",)
    elif {wait.operation.upper() for wait in story.waits} == {"SEND", "RECV"} and len(reporters) > 1:
        cause, phrase = "p2p_mismatch", "a send and a receive wait at the same time, so they are not each other's"
        suggested = ("Compare the order of sends and receives of the two stages (flight recorder, or the schedule's code)",)
    elif _started_everywhere(story):
        cause = "collective_started_everywhere"
        phrase = "all ranks are in it and none came out: a link, a GPU or NCCL itself"
        suggested = ("Look for Xid, port events and slow links on all nodes of the job",)
    ahead = [status for status in story.statuses if status.enqueued - status.completed > _FAR_AHEAD]
    return Diagnosis(
        verdict=story.verdict("hang"),
        cause=cause,
        victim_ranks=reporters,
        sentence=f"{ranks_words(reporters) if reporters else 'a rank'} waited in {_collective(story)} until the time-out; {phrase}",
        reasons_for=tuple(reasons),
        reasons_against=(
            "a rank that reports a time-out is one that waits, and not the cause",
            *(
                f"rank {status.rank} had {status.enqueued - status.completed} collectives enqueued beyond the last "
                f"finished one: the block is on the device or the network"
                for status in ahead[:1]
            ),
        ),
        suggested=suggested,
    )


_UNITS_S = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


def _set_timeout_s(story: Story) -> float | None:
    """A time-out that was set and is longer than the one that fired."""
    fired = min((wait.timeout_s for wait in story.waits if wait.timeout_s), default=None)
    values = [
        float(told.first.values["value"]) * _UNITS_S[told.first.values.get("unit", "seconds")]
        for told in story.told(Kind.SETTING, "timeout")
    ]
    return max(values) if values and fired is not None and max(values) > fired else None


def _started_everywhere(story: Story) -> bool:
    """All ranks of a known world report the same collective."""
    reporters = _reporters(story)
    same = len({(wait.sequence, wait.operation) for wait in story.waits}) == 1
    return same and story.world_size is not None and reporters == set(range(story.world_size)) and len(reporters) > 1


def _collective(story: Story) -> str:
    if not story.waits:
        return "a barrier"
    wait: Wait = min(story.waits, key=lambda each: each.fact.order)
    number = f" {wait.sequence}" if wait.sequence is not None else ""
    limit = f" (time-out {say_duration(wait.timeout_s)})" if wait.timeout_s else ""
    return f"{wait.operation}{number}{limit}"
