"""What `nvidia-smi topo -m` prints, by the names of its columns; a row that does not fit them is refused, never guessed."""

import re

from rankpatrol.core.records import Missing, Record
from rankpatrol.formats.cpu_list import parse_cpus


class GpuRow(Record, frozen=True, kw_only=True):
    """One GPU's row. `numa` holds nodes near it, `memory_node` the node that its own memory is; None: printed as N/A."""

    gpu: str
    cpus: frozenset[int] | Missing
    numa: tuple[int, ...] | Missing | None
    memory_node: int | Missing | None


_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_HEADER = re.compile(r"^\s+(?:GPU\d+\s+).*CPU Affinity|^\s*GPU\d+\s+CPU Affinity")
_ROW = re.compile(r"^\s*(GPU\d+)\s(.*)$")
_LINK = re.compile(r"^(?:X|SYS|NODE|PHB|PXB|PIX|SOC|NV\d+|NVB|PSB|C2C|SYSX|XSYS|(?:SYS|NODE|PHB|PXB|PIX|SOC|NV\d+|X){2,})$")
_ABSENT = Missing("this layout has no such column")


def parse_topo(text: str) -> tuple[GpuRow, ...]:
    """The GPU rows of each matrix in a text; empty where there is none."""
    columns: tuple[str, ...] | None = None
    rows: list[GpuRow] = []
    for line in _ANSI.sub("", text).splitlines():
        if _HEADER.match(line):
            columns = tuple(name for name in _COLUMNS if name in line)
        elif columns is not None and (found := _ROW.match(line)):
            rows.append(_row(found[1], found[2], columns))
        elif columns is not None and line.startswith("Legend"):
            columns = None
    return tuple(rows)


def _row(gpu: str, rest: str, columns: tuple[str, ...]) -> GpuRow:
    cells = [cell.strip() for cell in re.split(r"\t+|\s{2,}", rest) if cell.strip()]
    cells = [part for cell in cells for part in (cell.split() if all(_LINK.match(each) for each in cell.split()) else [cell])]
    last_link = max((at for at, cell in enumerate(cells) if _LINK.match(cell)), default=-1)
    trailing = cells[last_link + 1 :]
    if len(trailing) != len(columns):
        why = Missing(f"{len(trailing)} values stand below {len(columns)} columns: which is which cannot be told")
        return GpuRow(gpu=gpu, cpus=why, numa=why, memory_node=why)
    by_name = dict(zip(columns, trailing, strict=True))
    return GpuRow(
        gpu=gpu,
        cpus=_cpus(by_name.get(_COLUMNS[0])),
        numa=_nodes(by_name.get(_COLUMNS[1])),
        memory_node=_node(by_name.get(_COLUMNS[2])),
    )


def _cpus(cell: str | None) -> frozenset[int] | Missing:
    if cell is None:
        return _ABSENT
    if cell == "N/A":
        return Missing("printed as N/A")
    found = parse_cpus(cell)
    return Missing(f"no list of CPUs: {cell}") if found is None else found


def _nodes(cell: str | None) -> tuple[int, ...] | Missing | None:
    if cell is None:
        return _ABSENT
    if cell == "N/A":
        return None
    found = parse_cpus(cell)
    return Missing(f"no list of nodes: {cell}") if found is None else tuple(sorted(found))


def _node(cell: str | None) -> int | Missing | None:
    nodes = _nodes(cell)
    return nodes[0] if isinstance(nodes, tuple) and nodes else None if isinstance(nodes, tuple) else nodes
