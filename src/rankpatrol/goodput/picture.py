"""The account as a picture: one bar of the whole in its parts, and below it the same time as it passed. Pure; units are pixels."""

from collections.abc import Iterator

from rankpatrol.core.counts import say_count
from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Record
from rankpatrol.goodput.records import Account, Card, Part, Piece

WIDTH, MARGIN = 960.0, 24.0
_BAR_Y, _BAR_HEIGHT = 64.0, 34.0
_TIME_Y, _TIME_HEIGHT = 150.0, 26.0
_LEGEND_Y, _LEGEND_DOWN, _LEGEND_ACROSS = 214.0, 22.0, 304.0
_LEAST = 0.6  # a part that was there is seen
_NOTED_FROM = 60.0  # a narrower bar has no room for its share
# Drawn piece by piece, a job of months would be megabytes: neighbours narrower than this are one.
_FINEST = 0.25


class Bar(Record, frozen=True, kw_only=True):
    """One rectangle; `part` is its colour, `full` what a pointer over it is told."""

    part: Part
    x: float
    y: float
    width: float
    height: float
    note: str
    full: str


class Entry(Record, frozen=True, kw_only=True):
    """One line of the legend."""

    part: Part
    x: float
    y: float
    text: str


class Mark(Record, frozen=True, kw_only=True):
    """Where an incident began."""

    x: float
    y: float
    text: str
    full: str


class Picture(Record, frozen=True, kw_only=True):
    """All of it, and the size of the whole."""

    width: float
    height: float
    title: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    legend: tuple[Entry, ...]


def draw(account: Account) -> Picture:
    """The picture of one run."""
    legend = tuple(_legend(account))
    height = max((entry.y for entry in legend), default=_LEGEND_Y) + MARGIN
    bars = (*_shares(account), *_passage(account))
    return Picture(width=WIDTH, height=height, title=title(account), bars=bars, marks=tuple(_marks(account)), legend=legend)


def title(account: Account) -> str:
    """The account in one line."""
    ratio = account.ettr_ratio
    share = f"{ratio:.1%} of {say_duration(account.wall_s)} productive" if isinstance(ratio, float) else "no time has passed"
    return f"{share} · {say_count(account.attempts, 'attempt')} · {say_count(len(account.cards), 'incident')}"


def name_of(part: Part) -> str:
    """The part in the reader's words."""
    return part.value.replace("_", " ")


def _scale(account: Account) -> float:
    return (WIDTH - 2 * MARGIN) / account.wall_s if account.wall_s else 0.0


def _shares(account: Account) -> Iterator[Bar]:
    x, scale = MARGIN, _scale(account)
    for part, length_s in account.parts_s.items():
        if length_s and scale:
            width = length_s * scale
            share = f"{length_s / account.wall_s:.0%}"
            full = f"{name_of(part)}: {say_duration(length_s)} ({length_s / account.wall_s:.1%})"
            note = share if width >= _NOTED_FROM else ""
            yield Bar(part=part, x=x, y=_BAR_Y, width=max(_LEAST, width), height=_BAR_HEIGHT, note=note, full=full)
            x += width


def _passage(account: Account) -> Iterator[Bar]:
    scale = _scale(account)
    for piece in _seen(account, scale):
        begins = f"after {say_duration(max(0.0, piece.span.begin_s - account.span.begin_s))}"
        yield Bar(
            part=piece.part,
            x=_x(account, piece.span.begin_s),
            y=_TIME_Y,
            width=max(_LEAST, piece.span.length_s * scale),
            height=_TIME_HEIGHT,
            note="",
            full=f"{name_of(piece.part)}: {say_duration(piece.span.length_s)}, {begins}",
        )


def _seen(account: Account, scale: float) -> Iterator[Piece]:
    """Of pieces too narrow to be told apart, the first of each spot."""
    free_from_s = account.span.begin_s
    for piece in account.pieces:
        if piece.span.length_s * scale >= _FINEST or piece.span.begin_s >= free_from_s:
            yield piece
            free_from_s = max(piece.span.end_s, piece.span.begin_s + (_FINEST / scale if scale else 0.0))


def _x(account: Account, at_s: float) -> float:
    return MARGIN + min(max(0.0, at_s - account.span.begin_s), account.wall_s) * _scale(account)


def _marks(account: Account) -> Iterator[Mark]:
    for card in account.cards:
        incident = card.incident
        full = f"{incident.verdict or 'alert'} / {incident.cause}: {incident.sentence}"
        yield Mark(x=_x(account, incident.onset_s), y=_TIME_Y - 6, text=_incident_name(card), full=full)


def _incident_name(card: Card) -> str:
    return card.incident.incident if card.incident.launch == 0 else f"{card.incident.launch + 1}.{card.incident.incident}"


def _legend(account: Account) -> Iterator[Entry]:
    shown = [(part, length_s) for part, length_s in account.parts_s.items() if length_s]
    for place, (part, length_s) in enumerate(shown):
        row, column = divmod(place, 3)
        text = f"{name_of(part)}  {say_duration(length_s)}  {length_s / account.wall_s:.1%}"
        yield Entry(part=part, x=MARGIN + column * _LEGEND_ACROSS, y=_LEGEND_Y + row * _LEGEND_DOWN, text=text)
