"""What each incident cost, and what torch's own time-out would have cost in its place. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from rankpatrol.core.records import Missing
from rankpatrol.goodput.records import Attempt, Card, Incident, Launch, Part, Piece, Prevented, Span

# kProcessGroupNCCLDefaultTimeout (ProcessGroupNCCL.hpp) and torch.distributed.constants.default_pg_timeout, torch 2.13.
TIME_OUTS_S = {"NCCL": 600.0, "gloo": 1800.0}
# Only these would have stood until a time-out; a crash ends by itself, and what recovered needed none.
_ENDED_BY_TIME_OUT = frozenset({"hang"})
_ENDED_BY_US = frozenset({"ended", "requeued"})
_HOUR_S = 3600.0
NOT_YET = Missing("the job has not gone beyond the step it had reached before")
NOBODY = Missing("nobody was named")


def cards_of(launches: Sequence[Launch], pieces: Sequence[Piece], lost: Mapping[tuple[str, int], Span]) -> tuple[Card, ...]:
    """One card an incident, in order. `lost` holds the work that each attempt lost, by source and attempt."""
    incidents = [(launch, incident) for launch in launches for incident in launch.incidents]
    attempts = [attempt for launch in launches for attempt in launch.attempts]
    last = {(launch.source, incident.attempt): incident for launch, incident in incidents if incident.how != "recovered"}
    cards = []
    for place, (launch, incident) in enumerate(incidents):
        until_s = incidents[place + 1][1].onset_s if place + 1 < len(incidents) else pieces[-1].span.end_s if pieces else incident.onset_s
        mine = last.get((launch.source, incident.attempt)) is incident
        lost_span = lost.get((launch.source, incident.attempt)) if mine else None
        cards.append(_card(launch, incident, attempts, tuple(_clipped(pieces, incident, until_s, attempts)), _length_s(pieces, lost_span)))
    return tuple(cards)


def mean_s(durations: Iterable[float | Missing]) -> float | Missing:
    """The mean of those that are known."""
    known = [each for each in durations if not isinstance(each, Missing)]
    return sum(known) / len(known) if known else Missing("no incident tells it")


def _card(launch: Launch, incident: Incident, attempts: Sequence[Attempt], after: tuple[Piece, ...], lost_s: float) -> Card:
    spent = {part: sum((piece.span.length_s for piece in after if piece.part is part), 0.0) for part in Part}
    back_s = _back_s(incident, attempts)
    ranks = launch.world_size
    whole_s = spent[Part.STALL] + spent[Part.RECOVERY] + spent[Part.QUEUE] + lost_s
    nodes = next((attempt.nodes for attempt in launch.attempts if attempt.number == incident.attempt), {})
    return Card(
        incident=incident,
        nodes=tuple(dict.fromkeys(nodes[rank] for rank in incident.culprit_ranks if rank in nodes)),
        time_to_detect_s=incident.detected_s - incident.onset_s,
        time_to_identify_s=NOBODY if incident.identified_s is None else max(0.0, incident.identified_s - incident.onset_s),
        time_to_recover_s=NOT_YET if back_s is None else back_s - incident.onset_s,
        stall_s=spent[Part.STALL],
        recovery_s=spent[Part.RECOVERY],
        queue_s=spent[Part.QUEUE],
        lost_work_s=lost_s,
        ranks=ranks,
        rank_hours=None if ranks is None else whole_s * ranks / _HOUR_S,
        prevented=tuple(_prevented(incident, spent[Part.STALL], ranks)),
    )


def _prevented(incident: Incident, stall_s: float, ranks: int | None) -> Iterator[Prevented]:
    if incident.verdict not in _ENDED_BY_TIME_OUT or incident.how not in _ENDED_BY_US or not incident.acted:
        return
    for name, time_out_s in TIME_OUTS_S.items():
        saved_s = max(0.0, time_out_s - stall_s)
        hours = None if ranks is None else saved_s * ranks / _HOUR_S
        yield Prevented(time_out=name, time_out_s=time_out_s, stall_saved_s=saved_s, rank_hours_saved=hours)


def _back_s(incident: Incident, attempts: Sequence[Attempt]) -> float | None:
    """When the job first went beyond the step it had reached before the onset; without steps, when it moved or trained again."""
    if incident.how == "recovered":
        return incident.closed_s
    # Steps rise with time: the last one until then is the highest.
    until = [(attempt.steps, bisect_right(attempt.steps, incident.onset_s, key=itemgetter(0))) for attempt in attempts]
    reached = max((steps[place - 1][1] for steps, place in until if place), default=None)
    later = [attempt for attempt in attempts if attempt.span.begin_s > incident.onset_s]
    if reached is None:
        return next((at_s for attempt in later for at_s, phase in attempt.phases if phase in {"training", "train_step"}), None)
    return next((at_s for attempt in later for at_s, step in attempt.steps if step > reached), None)


def _clipped(pieces: Iterable[Piece], incident: Incident, until_s: float, attempts: Sequence[Attempt]) -> Iterator[Piece]:
    """What came of the incident: from its onset until the next one, or until an attempt trains again."""
    started_s = min((attempt.span.begin_s for attempt in attempts if attempt.span.begin_s > incident.onset_s), default=None)
    for piece in pieces:
        clipped = Span(max(piece.span.begin_s, incident.onset_s), min(piece.span.end_s, until_s))
        if not clipped.length_s:
            continue
        if piece.part is Part.PRODUCTIVE and (started_s is None or clipped.begin_s >= started_s or incident.how == "recovered"):
            return
        yield Piece(clipped, piece.part)


def _length_s(pieces: Iterable[Piece], span: Span | None) -> float:
    """As much of a span as was settled to be lost work."""
    if span is None:
        return 0.0
    return sum(
        (
            Span(max(piece.span.begin_s, span.begin_s), min(piece.span.end_s, span.end_s)).length_s
            for piece in pieces
            if piece.part is Part.LOST_WORK
        ),
        0.0,
    )
