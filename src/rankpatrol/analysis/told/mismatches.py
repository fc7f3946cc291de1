"""Ranks that called different collectives.

From DETAIL's fingerprints, watchdog lines of one sequence with different operations, and monitored barriers.
"""

import re
from collections import Counter

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.story_ends import ranks_in
from rankpatrol.analysis.told.words import quote, ranks_words
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Kind

_SEQUENCE = re.compile(r"SequenceNumber=(\d+)")
_OPERATION = re.compile(r"OpType=(\w+)")
_SHAPE = re.compile(r"TensorShape=\[([^\]]*)\]")
_KINDS = re.compile(r"TensorDtypes=(\w+)")
# Of these every member passes the same number of elements.
_SAME_SIZE = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLREDUCE_COALESCED"})
_ADVICE = (
    "Look for a collective behind a condition that is not the same on all ranks (keys that are logged, empty batches, `if rank == 0`)",
    "Run with TORCH_DISTRIBUTED_DEBUG=DETAIL on a few ranks to get both code lines",
)


class _Call(Record, frozen=True):
    """What one rank calls."""

    sequence: int | None
    operation: str
    shape: str


def disagreement(story: Story) -> Diagnosis | None:
    """Different operation, shape or sequence; with three or more ranks the odd one out is named, with two nobody."""
    calls, reasons = _fingerprints(story)
    if calls:
        return _fingerprint_verdict(story, calls, reasons)
    calls, reasons = _watchdogs(story)
    return _judge(story, calls, reasons) if len(calls) > 1 else _other_way(story)


def _fingerprints(story: Story) -> tuple[dict[int, _Call], list[str]]:
    calls: dict[int, _Call] = {}
    reasons = []
    for told in story.told(Kind.MISMATCH):
        values = told.first.values
        reasons.append(quote(told.first))
        for rank, text in ((values.get("one"), values.get("first")), (values.get("two"), values.get("second"))):
            if rank is not None and text is not None:
                calls[int(rank)] = _call(text)
    return calls, reasons


def _call(text: str) -> _Call:
    sequence, operation, shape, kinds = (regex.search(text) for regex in (_SEQUENCE, _OPERATION, _SHAPE, _KINDS))
    return _Call(
        int(sequence[1]) if sequence else None,
        operation[1] if operation else "?",
        f"{shape[1].replace(' ', '') if shape else ''}{' ' + kinds[1] if kinds else ''}",
    )


def _fingerprint_verdict(story: Story, calls: dict[int, _Call], reasons: list[str]) -> Diagnosis | None:
    same = len({call.operation for call in calls.values()}) == 1 and len(_known(calls)) <= 1
    if same and len({call.sequence for call in calls.values()}) > 1:
        numbers = [call.sequence for call in calls.values() if call.sequence is not None]
        return _false_alarm(calls, reasons) if max(numbers) - min(numbers) == 1 and not _known(calls) else _apart(calls, reasons)
    return _judge(story, calls, reasons)


def _known(calls: dict[int, _Call]) -> set[str]:
    """The shapes that are told; torch 2.0 left them out of the other rank's fingerprint."""
    return {call.shape for call in calls.values() if call.shape}


def _apart(calls: dict[int, _Call], reasons: list[str]) -> Diagnosis:
    said = ", ".join(f"rank {rank}: {call.operation} {call.sequence}" for rank, call in sorted(calls.items())[:4])
    return Diagnosis(
        verdict="crash",
        cause="rank_conditional_collective",
        sentence=f"ranks are at different numbers of the same operation ({said}): one of them left calls out",
        reasons_for=tuple(reasons[:2]),
        reasons_against=("which of them is wrong two numbers do not say", "the wrapper counts wrongly in some versions"),
        suggested=_ADVICE,
    )


def _false_alarm(calls: dict[int, _Call], reasons: list[str]) -> Diagnosis:
    numbers = sorted(call.sequence for call in calls.values() if call.sequence is not None)
    return Diagnosis(
        verdict="crash",
        cause="watchdog_false_alarm",
        certainty=Certainty.SUPPORTED,
        sentence="the debug wrapper ended the job: both ranks run the same operation, and only its own counters differ "
        f"({numbers[0]} and {numbers[-1]})",
        reasons_for=tuple(reasons[:2]),
        reasons_against=("a rank that left one such operation out would look the same",),
        suggested=("Run without TORCH_DISTRIBUTED_DEBUG=DETAIL; if it still hangs, compare the flight recorders",),
    )


def _watchdogs(story: Story) -> tuple[dict[int, _Call], list[str]]:
    """Time-outs of the same sequence of the same group."""
    by_place: dict[tuple[str | None, int | None], dict[int, _Call]] = {}
    quotes: dict[tuple[str | None, int | None], dict[_Call, str]] = {}
    for wait in story.waits:
        if wait.rank is None or wait.sequence is None or wait.operation in {"SEND", "RECV"}:
            continue  # a pair's own numbers say nothing of a group's
        shape = str(wait.numel[0]) if wait.operation in _SAME_SIZE and wait.numel[0] else ""
        call = _Call(wait.sequence, wait.operation, shape)
        group = None if wait.in_default_group() else wait.group
        by_place.setdefault((group, wait.sequence), {}).setdefault(wait.rank, call)
        quotes.setdefault((group, wait.sequence), {}).setdefault(call, quote(wait.fact))
    for place, calls in by_place.items():
        # Two ranks of two subgroups may share a sequence: only what is known to be one group is compared.
        known = place[0] is not None or not any(wait.group not in {None, "0"} for wait in story.waits)
        if known and len(set(calls.values())) > 1:
            return calls, list(quotes[place].values())
    return {}, []


def _other_way(story: Story) -> Diagnosis | None:
    """Ranks of one group that wait at different numbers in different operations: one of them took another way through the code.

    The one behind left calls out and is named where at least two others agree; one ahead may be right, and is not.
    """
    groups: dict[str | None, dict[int, _Call]] = {}
    for wait in story.waits:
        if wait.rank is not None and wait.sequence is not None and wait.operation not in {"SEND", "RECV"}:
            group = None if wait.in_default_group() else wait.group
            groups.setdefault(group, {}).setdefault(wait.rank, _Call(wait.sequence, wait.operation, ""))
    for group, calls in groups.items():
        if len({call.operation for call in calls.values()}) < 2 or (group is None and len(groups) > 1):
            continue
        odd = _odd({rank: f"{call.operation} {call.sequence}" for rank, call in calls.items()})
        most = max(call.sequence or 0 for call in calls.values())
        behind = tuple(rank for rank in odd if (calls[rank].sequence or 0) < most)
        said = ", ".join(f"rank {rank}: {call.operation} {call.sequence}" for rank, call in sorted(calls.items())[:4])
        return Diagnosis(
            verdict=story.verdict("hang"),
            cause="rank_conditional_collective",
            culprit_ranks=behind or None,
            victim_ranks=tuple(sorted(set(calls) - set(behind))) if behind else (),
            certainty=Certainty.SUPPORTED if behind else Certainty.SUSPECTED,
            sentence=f"ranks of one group wait in different collectives ({said}): one of them took another way through the code",
            reasons_for=tuple(quote(wait.fact) for wait in story.waits[:2]),
            reasons_against=() if behind else ("the one that is ahead may be right: nobody is named",),
            suggested=_ADVICE,
        )
    return None


def _judge(story: Story, calls: dict[int, _Call], reasons: list[str]) -> Diagnosis | None:
    operations = {rank: call.operation for rank, call in calls.items()}
    differ = len(set(operations.values())) > 1
    shapes = {rank: call.shape for rank, call in calls.items()}
    if not differ:
        shapes = {rank: shape for rank, shape in shapes.items() if shape}
    if not differ and len(set(shapes.values())) <= 1:
        return None
    odd = _odd(operations if differ else shapes)
    cause = "collective_mismatch_op" if differ else "collective_mismatch_shape"
    said = ", ".join(
        f"rank {rank}: {call.operation}{' [' + call.shape + ']' if call.shape else ''}" for rank, call in sorted(calls.items())[:4]
    )
    sequence = next((call.sequence for call in calls.values() if call.sequence is not None), None)
    where = f" at number {sequence}" if sequence is not None else ""
    subject = ranks_words(odd) + (" calls" if len(odd) == 1 else " call") if odd else "the ranks call"
    return Diagnosis(
        verdict=story.verdict("crash" if story.says(Kind.MISMATCH) else "hang"),
        cause=cause,
        culprit_ranks=odd or None,
        victim_ranks=tuple(sorted(set(calls) - set(odd))) if odd else (),
        certainty=Certainty.SUPPORTED,
        sentence=f"{subject} {_what(differ=differ, odd=bool(odd))}{where} ({said})",
        reasons_for=tuple(reasons[:3]),
        reasons_against=("the odd one out may be the one that is right" if odd else "with two sides of equal weight nobody can be named",),
        suggested=_ADVICE,
    )


def _what(*, differ: bool, odd: bool) -> str:
    if odd:
        return "another collective than the others" if differ else "a collective with another size than the others"
    return "different collectives" if differ else "a collective with different sizes"


def _odd(calls: dict[int, str]) -> tuple[int, ...]:
    """The one rank that differs from at least two that agree; else nobody."""
    counts = Counter(calls.values())
    (common, most), *_ = counts.most_common(1)
    odd = tuple(sorted(rank for rank, call in calls.items() if call != common))
    return odd if most >= 2 and len(odd) == 1 else ()


def absent_from_barrier(story: Story) -> tuple[int, ...]:
    """Whom a monitored barrier, or c10d's own report, names as not having come."""
    named = [told.first.values.get("ranks", "") for told in story.told(Kind.BARRIER_ABSENT, "")]
    return tuple(sorted({rank for text in named for rank in ranks_in(text)}))
