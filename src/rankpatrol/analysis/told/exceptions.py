"""A rank's own exception: the first cause of what its peers suffer from it."""

import re

from rankpatrol.analysis.story import Failure, Story
from rankpatrol.analysis.told.words import named, quote, ranks_words, who
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Kind, seconds_between
from rankpatrol.formats.log_echoes import is_echo
from rankpatrol.formats.log_ledger import Raise, Told

# An exception that a rank meets in the middle of an abort is what the abort left behind.
_AFTER_AN_ABORT = frozenset({"OutOfMemoryError"})
# Two ranks that raise the same within this time meet the same fault; nobody is first.
_AT_ONCE_S = 1.0
_SKIPPED_IN_A_ROW = 3
_ATTEMPTS = 3
_NO_NUMBER = re.compile(r"\b(?:nan|inf|not finite|non-?finite)\b", re.IGNORECASE)


def own_exception(story: Story) -> Diagnosis | None:
    """One rank raised, the others wait or fail of it; or all raised the same, and nobody is to blame."""
    own = [failure for failure in story.failures if _first_hand(story, failure)]
    if not own:
        return None
    first, ranks = _with_its_rank(own[0], own), sorted({failure.rank for failure in own if failure.rank is not None})
    if len(ranks) > 1:
        earliest = _earliest(own)
        if earliest is None:
            return _nobody_first(story, own, ranks)
        first = earliest
    rank = first.rank if first.rank is not None else _only_dead(story)
    suffer = story.others_suffer(rank) or _others_alive(story, rank)
    if not suffer and not story.ends and not _has_traceback(first):
        rank = None  # a word in a log, perhaps of something that was handled: nobody is accused of it
    return Diagnosis(
        verdict=story.verdict(),
        cause="rank_exception_peers_wait" if suffer else "user_exception",
        culprit_ranks=named(rank),
        victim_ranks=tuple(sorted(story.ranks - {rank})) if rank is not None else (),
        certainty=Certainty.SUPPORTED
        if (first.fact.values.get("header") == "1" or suffer) and not _write_failed(first) and not story.only_by_its_node(first.fact.teller)
        else Certainty.SUSPECTED,
        sentence=f"{who(rank, first.local_rank, first.fact.teller.host)} raised {_say(first)}"
        + ("; the others wait for it, or fail because it is gone" if suffer else ""),
        reasons_for=(quote(first.fact), *(f"after it, and only its echo: {quote(echo.fact)}" for echo in story.echoes[:2])),
        reasons_against=() if rank is not None else ("whose exception it is the lines do not say",),
        suggested=_advice(first),
    )


def repeated(story: Story) -> Diagnosis | None:
    """The same exception at the same place after the same step, in three attempts of one log: it is no accident."""
    seen: dict[tuple[object, ...], list[Raise]] = {}
    for each in story.ledger.raises:
        fact = each.fact
        message, frames = fact.values.get("message", ""), fact.values.get("frames", "")
        if is_echo(fact.word, message, frames):
            continue
        known = seen.setdefault((fact.word, message, fact.values.get("place"), story.rank_of(fact.teller), each.after_step), [])
        if not known or (known[-1].counted, known[-1].restarts) != (each.counted, each.restarts):
            known.append(each)
    for (*_, rank, step), attempts in seen.items():
        last = story.ledger.raises[-1]
        if len(attempts) >= _ATTEMPTS and attempts[-1].counted == last.counted and (step is not None or rank is not None):
            return _again(story, rank if isinstance(rank, int) else None, step, attempts)
    return None


def _again(story: Story, rank: int | None, step: object, attempts: list[Raise]) -> Diagnosis:
    fact = attempts[-1].fact
    after = f" after step {step}" if step is not None else ""
    return Diagnosis(
        verdict=story.verdict(),
        cause="repeated_failure",
        culprit_ranks=named(rank),
        victim_ranks=tuple(sorted(story.ranks - {rank})) if rank is not None else (),
        certainty=Certainty.SUPPORTED,
        sentence=f"{who(rank, fact.teller.local_rank)} raised {fact.text[:120]}{after} in {len(attempts)} attempts: "
        "a restart alone meets it again",
        reasons_for=tuple(quote(each.fact) for each in attempts[:3]),
        suggested=(
            "Do not start it again unchanged",
            "Look at the batch of that step, and go back to an older checkpoint if it is damaged",
        ),
    )


def lost_its_numbers(story: Story) -> Diagnosis | None:
    """A loss that is no number any more: a crash where the code checks for it, wasted steps where it does not."""
    told = _without_number(story)
    if not told or story.waits or story.ends:
        return None
    raised = [failure for failure in story.failures if _NO_NUMBER.search(failure.message)]
    if story.failures and not raised:
        return None
    if not raised and story.silence_s is not None and story.goes_on:
        return None
    return Diagnosis(
        verdict="crash" if raised else "healthy",
        cause="loss_nan",
        certainty=Certainty.SUPPORTED,
        sentence="the loss is no number any more" + ("" if raised else ": the steps go on, and are lost"),
        reasons_for=tuple(quote(each.first) for each in told[:2]),
        suggested=("Go back to a checkpoint before it, and look at the batch, the learning rate and the loss scale at that step",),
    )


def _without_number(story: Story) -> list[Told]:
    """Losses that are no number, unless one that is came later. A gradient's norm alone may be one step that a scaler skipped."""
    numbers = max((told.last.order for told in story.told(Kind.OBSERVED, "loss_number")), default=-1)
    losses = [told for told in story.told(Kind.SYMPTOM, "loss_nan") if told.last.order >= numbers]
    norms = [told for told in story.told(Kind.SYMPTOM, "grad_nan") if told.last.order > numbers and told.count >= _SKIPPED_IN_A_ROW]
    raised = any(_NO_NUMBER.search(failure.message) for failure in story.failures)
    return losses or norms or (story.told(Kind.SYMPTOM, "loss_nan") if raised else [])


def _with_its_rank(first: Failure, own: list[Failure]) -> Failure:
    """A launcher that repeats a rank's lines writes the same failure once with and once without its rank: the one with it is kept."""
    if first.rank is not None:
        return first
    file = first.fact.where.file
    same = (first.exception, first.message)
    twins = [failure for failure in own if (failure.exception, failure.message) == same and failure.fact.where.file == file]
    ranked = [failure for failure in twins if failure.rank is not None]
    return ranked[0] if len({failure.rank for failure in ranked}) == 1 and len(twins) <= 2 * len(ranked) else first


def _first_hand(story: Story, failure: Failure) -> bool:
    before = [wait for wait in story.waits if story.comes_before(wait.fact, failure.fact)]
    if failure.exception.rpartition(".")[2] in _AFTER_AN_ABORT:
        return not before
    # After its own time-out a rank raises what the abort leaves; another rank's time-out is no reason to.
    return not any(wait.rank == failure.rank for wait in before) or failure.fact.values.get("header") == "1"


def _earliest(failures: list[Failure]) -> Failure | None:
    """The one that stands well before those of other ranks: by one clock; of different kinds in one file, by the order of lines."""
    by_rank = {failure.rank: failure for failure in reversed(failures)}
    ordered = sorted(by_rank.values(), key=lambda failure: failure.fact.order)
    if len({failure.fact.where.file for failure in ordered}) == 1 and len({failure.exception for failure in ordered}) > 1:
        return ordered[0] if ordered[0].exception != ordered[1].exception else None
    stamped = [failure for failure in ordered if failure.fact.at is not None]
    if len(stamped) != len(ordered) or len({failure.fact.at.form for failure in stamped if failure.fact.at is not None}) > 1:
        return None
    ordered = sorted(
        stamped, key=lambda failure: (failure.fact.at.day or 0, failure.fact.at.second_of_day_s) if failure.fact.at else (0, 0.0)
    )
    gap = seconds_between(ordered[0].fact.at, ordered[1].fact.at)
    return ordered[0] if gap is not None and gap > _AT_ONCE_S else None


def _nobody_first(story: Story, own: list[Failure], ranks: list[int]) -> Diagnosis:
    first = own[0]
    alike = len({failure.exception for failure in own}) == 1
    what = f"each raised {_say(first)}: the same fault" if alike else f"raised exceptions of their own, {_say(first)} among them: faults"
    return Diagnosis(
        verdict=story.verdict(),
        cause="user_exception",
        certainty=Certainty.SUPPORTED if alike else Certainty.SUSPECTED,
        sentence=f"{ranks_words(ranks)} {what} on several ranks, so no single one is to blame",
        reasons_for=tuple(quote(failure.fact) for failure in own[: 1 if alike else 3]),
        reasons_against=("which of them was first cannot be told from these lines",),
        suggested=_advice(first),
    )


def _only_dead(story: Story) -> int | None:
    """The one rank that ended by itself, where the traceback has no name on it."""
    ranks = {end.rank for end in story.ends if end.by_itself() and end.code not in {0, None}}
    firsts = {end.rank for end in story.ends if end.first}
    return next(iter(firsts), None) if len(firsts) == 1 else ranks.pop() if len(ranks) == 1 else None


def _others_alive(story: Story, rank: int | None) -> bool:
    return any(told.first.teller.rank != rank for told in story.told(Kind.ALIVE)) or (story.goes_on and len(story.ranks) > 1)


def _write_failed(failure: Failure) -> bool:
    """Torch's own writer says no more than that: the disk may be full, or gone."""
    return "inline_container" in failure.message or "PytorchStreamWriter" in failure.message


def _has_traceback(failure: Failure) -> bool:
    return failure.fact.values.get("header") == "1" or "frames" in failure.fact.values


def _say(failure: Failure) -> str:
    name = failure.exception.rpartition(".")[2]
    message = f": {failure.message[:160]}" if failure.message else ""
    return f"{name}{message}{f' in {failure.place}' if failure.place else ''}"


def _advice(failure: Failure) -> tuple[str, ...]:
    place = f"Look at {failure.place}" if failure.place else "Read that rank's traceback"
    extra: tuple[str, ...] = ()
    if _write_failed(failure):
        extra = ("A write failed: look first whether that file system is full, or over its quota (`df -h`, `df -i`, `quota`)",)
    if failure.exception.rpartition(".")[2] in {"FileExistsError", "FileNotFoundError"}:
        extra = ("A restart alone meets the same files again: check what the last attempt left (`rankpatrol checkpoints verify DIR`)",)
    return (f"{place}; the peers' errors need no search of their own", *extra)
