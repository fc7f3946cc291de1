"""Where a run's wall time went: every moment gets the part that speaks loudest for it, so the parts sum to the wall time. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

from rankpatrol.core.records import Missing
from rankpatrol.goodput.cards import cards_of, mean_s
from rankpatrol.goodput.records import Account, Attempt, Incident, Launch, Part, Piece, Span

# Two launches of one run may overlap by the clocks of two nodes; more than this, and they are two runs.
_OVERLAP_S = 5.0
# How long after its last step a finished attempt still counts as training: the agent tells steps once a second, logs not each.
_LAST_STEP_S = 2.0
# What the steps before the first named one took is told by those just after it.
_STEPS_WEIGHED = 1000
# Who wins a moment that several claim; IDLE is what nobody claims.
_LOUDNESS = {
    "between": 1,
    "queue": 2,
    "start": 3,
    "training": 4,
    "lost": 5,
    "silence": 6,  # a stall that ended by itself: a checkpoint was no stall
    "phase": 7,
    "stall": 8,
}


class Claim(NamedTuple):
    """A span that claims to be of this part, as loud as its `voice`."""

    span: Span
    part: Part
    voice: str


class Stretch(NamedTuple):
    """One attempt in its run, and from when to when it trained (None: it never did)."""

    launch: Launch
    attempt: Attempt
    trained: Span | None
    first_step: int | None


def runs_of(launches: Iterable[Launch]) -> list[list[Launch]]:
    """Launches of the same command, one after another, are one run; all others are runs of their own."""
    runs: list[list[Launch]] = []
    for launch in sorted(launches, key=lambda each: each.span.begin_s):
        fits = [run for run in runs if run[-1].command == launch.command and launch.span.begin_s >= run[-1].span.end_s - _OVERLAP_S]
        if fits and launch.command:
            fits[-1].append(launch)
        else:
            runs.append([launch])
    return runs


def account_of(launches: Sequence[Launch]) -> Account:
    """The account of one run: launches in order, not overlapping."""
    queued = [span for launch in launches for span in launch.queued]
    begin_s = min(launches[0].span.begin_s, *(span.begin_s for span in queued)) if queued else launches[0].span.begin_s
    whole = Span(begin_s, max(begin_s, *(launch.span.end_s for launch in launches)))
    attempts = [(launch, attempt) for launch in launches for attempt in launch.attempts]
    stretches = [_stretch(launch, attempt, first=place == 0) for place, (launch, attempt) in enumerate(attempts)]
    remarks = [f"{launch.source}: {remark}" if len(launches) > 1 else remark for launch in launches for remark in launch.remarks]
    lost = _lost(stretches, remarks)
    claims = [
        *_between(launches),
        *_waiting(queued, stretches, whole),
        *(claim for number, stretch in enumerate(stretches) for claim in _trains(stretch, first=number == 0)),
        *(Claim(span, Part.LOST_WORK, "lost") for span in lost.values()),
        *_stalls(launches, stretches),
    ]
    pieces = tuple(_settled(claims, whole))
    parts_s = {part: sum((piece.span.length_s for piece in pieces if piece.part is part), 0.0) for part in Part}
    _remark_unseen_steps(stretches, remarks)
    cards = cards_of(launches, pieces, lost)
    return Account(
        sources=tuple(launch.source for launch in launches),
        attempts=len(stretches),
        ranks=max((launch.world_size or 0 for launch in launches), default=0) or None,
        span=whole,
        wall_s=whole.length_s,
        parts_s=parts_s,
        ettr_ratio=parts_s[Part.PRODUCTIVE] / whole.length_s if whole.length_s else Missing("all events are of one moment"),
        pieces=pieces,
        cards=cards,
        mean_time_to_detect_s=mean_s(card.time_to_detect_s for card in cards),
        mean_time_to_identify_s=mean_s(card.time_to_identify_s for card in cards),
        mean_time_to_recover_s=mean_s(card.time_to_recover_s for card in cards),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _settled(claims: Iterable[Claim], whole: Span) -> Iterator[Piece]:
    """The loudest claim of each moment; neighbours of one part are one piece."""
    edges: list[tuple[float, int, Claim]] = []
    for claim in claims:
        begin_s, end_s = max(claim.span.begin_s, whole.begin_s), min(claim.span.end_s, whole.end_s)
        if begin_s < end_s:
            edges += [(begin_s, 1, claim), (end_s, -1, claim)]
    active = dict.fromkeys(((voice, part) for voice in _LOUDNESS for part in Part), 0)
    since_s, part = whole.begin_s, Part.IDLE
    for at_s, now in groupby(sorted(edges, key=_edge_time), key=_edge_time):
        for _, step, claim in now:
            active[claim.voice, claim.part] += step
        loudest = max((key for key, number in active.items() if number), key=_loudness, default=("", Part.IDLE))[1]
        if loudest is not part and at_s > since_s:
            yield Piece(Span(since_s, at_s), part)
            since_s = at_s
        part = loudest
    if whole.end_s > since_s:
        yield Piece(Span(since_s, whole.end_s), part)


def _edge_time(edge: tuple[float, int, Claim]) -> float:
    return edge[0]


def _loudness(key: tuple[str, Part]) -> int:
    return _LOUDNESS[key[0]]


def _between(launches: Iterable[Launch]) -> Iterator[Claim]:
    for launch in launches:
        if launch.attempts:
            yield Claim(Span(launch.span.begin_s, launch.attempts[0].span.begin_s), Part.INITIALISATION, "between")
        for before, after in pairwise(launch.attempts):
            yield Claim(Span(before.span.end_s, after.span.begin_s), Part.RECOVERY, "between")


def _waiting(queued: Iterable[Span], stretches: Iterable[Stretch], whole: Span) -> Iterator[Claim]:
    """Until told, or until the next attempt; an attempt that runs is not in a queue, and is louder."""
    starts = [stretch.attempt.span.begin_s for stretch in stretches]
    for span in queued:
        until_s = min((start for start in starts if start > span.begin_s), default=whole.end_s)
        yield Claim(Span(span.begin_s, min(span.end_s, until_s)), Part.QUEUE, "queue")


def _trains(stretch: Stretch, *, first: bool) -> Iterator[Claim]:
    """The start of an attempt that follows another's failure is part of the recovery."""
    attempt = stretch.attempt
    begins_anew = first or (attempt is stretch.launch.attempts[0] and not attempt.requeued)
    start = Part.INITIALISATION if begins_anew else Part.RECOVERY
    yield Claim(Span(attempt.span.begin_s, stretch.trained.begin_s if stretch.trained else attempt.span.end_s), start, "start")
    if stretch.trained is not None:
        yield Claim(stretch.trained, Part.PRODUCTIVE, "training")
    for span in attempt.checkpoints:
        yield Claim(span, Part.CHECKPOINT, "phase")
    for span in attempt.compilations:
        yield Claim(span, start, "phase")


def _stretch(launch: Launch, attempt: Attempt, *, first: bool) -> Stretch:
    began_s, first_step = _trains_from(attempt, first=first)
    if began_s is None:
        return Stretch(launch, attempt, None, first_step)
    return Stretch(launch, attempt, Span(began_s, max(began_s, _trains_to(attempt))), first_step)


def _trains_from(attempt: Attempt, *, first: bool) -> tuple[float | None, int | None]:
    """When the first step began, and the step it began from, each as far as it is told."""
    marked_s = next((at_s for at_s, phase in attempt.phases if phase == "train_step"), None)
    joined_s = next((at_s for at_s, phase in attempt.phases if phase in {"training", "train_step"}), None)
    if not attempt.steps:
        return marked_s if marked_s is not None else joined_s, attempt.resumed_step
    at_s, step = attempt.steps[0]
    from_step = attempt.resumed_step if attempt.resumed_step is not None else 0 if first else step - 1
    if marked_s is not None:
        return min(marked_s, at_s), max(0, min(from_step, step))
    # Logs may name every hundredth step only: the ones before the first named took as long as those after it.
    before_s = max(0, step - from_step) * (_usual_step_s(attempt) or 0.0)
    earliest_s = joined_s if joined_s is not None else attempt.span.begin_s
    return min(at_s, max(earliest_s, at_s - before_s)), max(0, min(from_step, step))


def _usual_step_s(attempt: Attempt) -> float | None:
    near = pairwise(attempt.steps[:_STEPS_WEIGHED])
    each_s = [(later[0] - earlier[0]) / (later[1] - earlier[1]) for earlier, later in near]
    return median(each_s) if each_s else None


def _trains_to(attempt: Attempt) -> float:
    """The end of an attempt, or of its training where its groups were taken down, or where it finished some time after its last step."""
    torn_down_s = [at_s for at_s, phase in attempt.phases if phase == "teardown"]
    if torn_down_s and attempt.phases[-1][1] == "teardown":
        return torn_down_s[-1]
    if attempt.reason == "finished" and attempt.steps:
        told_s = [later[0] - earlier[0] for earlier, later in pairwise(attempt.steps)]
        return min(attempt.span.end_s, attempt.steps[-1][0] + max(_LAST_STEP_S, 2 * median(told_s) if told_s else 0.0))
    return attempt.span.end_s


def _lost(stretches: Sequence[Stretch], remarks: list[str]) -> dict[tuple[str, int], Span]:
    """Steps that a later attempt does again, by source and attempt: all after the earliest step that any later one began from."""
    lost: dict[tuple[str, int], Span] = {}
    kept: int | None = None  # the step up to which work is kept, as the later attempts tell
    for place in range(len(stretches) - 1, -1, -1):
        launch, attempt, trained, first_step = stretches[place]
        if trained is not None and attempt.steps and kept is not None and attempt.steps[-1][1] > kept:
            lost[launch.source, attempt.number] = Span(_reached_s(attempt, trained, first_step, kept), trained.end_s)
        if first_step is not None and place and (attempt.steps or attempt.resumed_step is not None):
            kept = first_step if kept is None else min(kept, first_step)
            if attempt.resumed_step is None:
                remarks.append(f"attempt {attempt.number} does not tell where it resumed from: taken from the first step it named")
    return lost


def _reached_s(attempt: Attempt, trained: Span, first_step: int | None, step: int) -> float:
    """When this attempt had done `step`, between the two moments that are told."""
    known = [(trained.begin_s, first_step if first_step is not None else attempt.steps[0][1]), *attempt.steps]
    if step <= known[0][1]:
        return trained.begin_s
    for (early_s, low), (late_s, high) in pairwise(known):
        if low <= step < high:
            return early_s + (late_s - early_s) * (step - low) / (high - low)
    return trained.end_s


def _stalls(launches: Iterable[Launch], stretches: Sequence[Stretch]) -> Iterator[Claim]:
    by_place = {(stretch.launch.source, stretch.attempt.number): stretch for stretch in stretches}
    for launch in launches:
        for incident in launch.incidents:
            stretch = by_place.get((launch.source, incident.attempt))
            if stretch is not None:
                yield _stall(incident, stretch)


def _stall(incident: Incident, stretch: Stretch) -> Claim:
    """From the onset to the attempt's end; one that ended by itself to its end, and only of the training."""
    attempt = stretch.attempt
    begin_s = max(incident.onset_s, attempt.span.begin_s)
    if incident.how == "recovered" and incident.closed_s is not None:
        began_s = stretch.trained.begin_s if stretch.trained else attempt.span.end_s
        return Claim(Span(max(begin_s, began_s), min(incident.closed_s, attempt.span.end_s)), Part.STALL, "silence")
    return Claim(Span(begin_s, attempt.span.end_s), Part.STALL, "stall")


def _remark_unseen_steps(stretches: Iterable[Stretch], remarks: list[str]) -> None:
    blind = [str(stretch.attempt.number) for stretch in stretches if stretch.trained is not None and not stretch.attempt.steps]
    if blind:
        remarks.append(f"attempt {', '.join(blind)} names no step: its training time counts as productive, and lost work cannot be told")
