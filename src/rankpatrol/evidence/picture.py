"""Where everything stands in the report's picture: ranks in a row, who waits for whom, down to the process and the file. Pure."""

from collections.abc import Iterator, Sequence

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import ProcessSample, RankSample, Snapshot

_MOST_BOXES = 10
_BOX_WIDTH, _BOX_HEIGHT, _GAP, _MARGIN = 92, 50, 20, 24
_LEAST_WIDTH = 720
_DOWN = 92  # from one row to the next
_CHARACTER = 7.3  # width of one character of the boxes' typeface


class Box(Record, frozen=True, kw_only=True):
    """One thing in the picture; `kind` is its style: culprit, awaited, victim, other, process or file."""

    kind: str
    x: float
    y: float
    width: float
    title: str
    note: str
    full: str
    height: float = _BOX_HEIGHT

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


class Arrow(Record, frozen=True, kw_only=True):
    """Points at what is waited for; `path` is an SVG path."""

    path: str
    label: str = ""
    x: float = 0
    y: float = 0


class Picture(Record, frozen=True, kw_only=True):
    """All boxes and arrows, and the size of the whole."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


class _Group(Record, frozen=True):
    kind: str
    ranks: tuple[int, ...]


class _Link(Record, frozen=True):
    kind: str
    title: str
    note: str
    label: str


def draw(diagnosis: Diagnosis, snapshot: Snapshot) -> Picture:
    """The picture of one diagnosis; many ranks of one kind share a box."""
    groups = _groups(diagnosis, sorted(sample.rank for sample in snapshot.ranks))
    width = max(_LEAST_WIDTH, 2 * _MARGIN + len(groups) * (_BOX_WIDTH + _GAP) - _GAP)
    culprits = [group for group in groups if group.kind in {"culprit", "awaited"}]
    top = 84 if culprits and len(groups) > len(culprits) else 16
    row = _row(groups, width, top)
    targets = [box for box in row if box.kind in {"culprit", "awaited"}]
    chain, links = _chain(diagnosis, snapshot, targets[0], width) if targets else ([], [])
    boxes = (*row, *chain)
    height = max((box.y + box.height for box in boxes), default=0) + 16
    return Picture(width=width, height=height, boxes=boxes, arrows=(*_arcs(row, targets, top), *links))


def role(diagnosis: Diagnosis, rank: int) -> str:
    """The glossary's word for what this rank is in this diagnosis, or `other`."""
    if rank in (diagnosis.culprit_ranks or ()):
        return "culprit"
    if rank in (diagnosis.awaited_ranks or ()):
        return "awaited"
    return "victim" if rank in diagnosis.victim_ranks else "other"


def say_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    said = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank{'' if len(ranks) == 1 else 's'} {said}"


def find_process(diagnosis: Diagnosis, snapshot: Snapshot) -> tuple[RankSample, ProcessSample] | None:
    """The blocked process that the diagnosis names, with the rank it belongs to."""
    for sample in snapshot.ranks:
        for process in (sample.process, *sample.descendants):
            if not isinstance(process, Missing) and process.id == diagnosis.process:
                return sample, process
    return None


def _groups(diagnosis: Diagnosis, ranks: list[int]) -> list[_Group]:
    roles = {rank: role(diagnosis, rank) for rank in ranks}
    if len(ranks) <= _MOST_BOXES:
        return [_Group(roles[rank], (rank,)) for rank in ranks]
    kinds = ("victim", "other", "awaited", "culprit")
    return [_Group(kind, members) for kind in kinds if (members := tuple(rank for rank in ranks if roles[rank] == kind))]


def _row(groups: list[_Group], width: float, top: float) -> tuple[Box, ...]:
    used = len(groups) * (_BOX_WIDTH + _GAP) - _GAP
    left = (width - used) / 2
    return tuple(
        Box(
            kind=group.kind,
            x=left + place * (_BOX_WIDTH + _GAP),
            y=top,
            width=_BOX_WIDTH,
            title=say_ranks(group.ranks) if len(group.ranks) == 1 else f"{len(group.ranks)} ranks",
            note="" if group.kind == "other" else group.kind,
            full=say_ranks(group.ranks),
        )
        for place, group in enumerate(groups)
    )


def _arcs(row: Sequence[Box], targets: Sequence[Box], top: float) -> Iterator[Arrow]:
    """One arc over the row for each victim, the far ones higher; their ends spread over the target's edge."""
    victims = [box for box in row if box.kind == "victim"]
    for target in targets if len(targets) * len(victims) <= 2 * _MOST_BOXES else targets[:1]:
        for place, victim in enumerate(_without_crossings(victims, target)):
            end = target.x + target.width * (place + 1) / (len(victims) + 1)
            rise = 26 + min(72, abs(end - victim.centre) * 0.24)
            yield Arrow(
                path=f"M{victim.centre:.0f},{top - 2} C{victim.centre:.0f},{top - rise:.0f} {end:.0f},{top - rise:.0f} {end:.0f},{top - 5}"
            )


def _without_crossings(victims: Sequence[Box], target: Box) -> list[Box]:
    """The order in which arcs reach the target from left to right, so that near ones stay inside far ones."""
    left = sorted((box for box in victims if box.x < target.x), key=lambda box: -box.x)
    return left + sorted((box for box in victims if box.x > target.x), key=lambda box: -box.x)


def _chain(diagnosis: Diagnosis, snapshot: Snapshot, target: Box, width: float) -> tuple[list[Box], list[Arrow]]:
    """Below the rank that is waited for: its blocked process, and the file that one is blocked on."""
    uppers, arrows = [target], []
    for link in _links(diagnosis, snapshot):
        box = _box_below(target, len(uppers), link, width)
        upper = uppers[-1]
        arrows.append(
            Arrow(
                path=f"M{target.centre:.0f},{upper.y + upper.height + 2:.0f} V{box.y - 5:.0f}",
                label=link.label,
                x=target.centre,
                y=(upper.y + upper.height + box.y) / 2 + 4,
            )
        )
        uppers.append(box)
    return uppers[1:], arrows


def _links(diagnosis: Diagnosis, snapshot: Snapshot) -> Iterator[_Link]:
    found = find_process(diagnosis, snapshot)
    process = found[1] if found else None
    if found and process and process.id.pid != found[0].pid:
        yield _Link("process", f"{process.name} {process.id.pid}", "process", "waits for")
    if diagnosis.file is not None:
        note = "file" if diagnosis.file_offset_bytes is None else f"at byte {diagnosis.file_offset_bytes}"
        yield _Link("file", diagnosis.file, note, _blocked_in(process))


def _blocked_in(process: ProcessSample | None) -> str:
    if process is None or isinstance(process.system_call, Missing) or process.system_call.name == "running":
        return "uses"
    return f"blocked in {process.system_call.name}()"


def _box_below(target: Box, rows_down: int, link: _Link, width: float) -> Box:
    """A box as wide as its title, under the target as far as the picture's edges allow; a long title loses its middle."""
    most = int((width - 2 * _MARGIN - 28) / _CHARACTER)
    title = link.title if len(link.title) <= most else f"{link.title[: most // 3]}…{link.title[-(most - most // 3 - 1) :]}"
    box_width = max(_BOX_WIDTH, len(title) * _CHARACTER + 28)
    left = min(max(_MARGIN, target.centre - box_width / 2), width - _MARGIN - box_width)
    y = target.y + rows_down * _DOWN
    return Box(kind=link.kind, x=left, y=y, width=box_width, title=title, note=link.note, full=link.title)
