"""Reads `nvidia-smi topo -m`: values by the names of their columns, never by their place in the line. Only a cross-check of sysfs."""

import re
from typing import TypeAlias

from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.core.records import Missing, Record

# The three columns after the links, in all layouts seen since 2017, and ours for them.
_COLUMNS = {"CPU Affinity": "cpu_affinity", "NUMA Affinity": "numa_affinity", "GPU NUMA ID": "gpu_numa_id"}
_HEADER = re.compile("|".join(_COLUMNS))
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# X, the PCI link words (SOC until 2017), and NVLink's with their count. Two that a terminal ran together stay two.
_LINK = re.compile(r"(?:NV\d+|X|PIX|PXB|PHB|NODE|SYS|SOC)")
_LINKS = re.compile(rf"(?:{_LINK.pattern})+")
Cell: TypeAlias = frozenset[int] | Missing | None


class TopoRow(Record, frozen=True):
    """One GPU's place as printed. None: printed as N/A; Missing: no such column, or its cell cannot be told."""

    gpu: int
    cpu_affinity: Cell
    numa_affinity: Cell
    gpu_numa_id: Cell


def read_topo(text: str) -> tuple[TopoRow, ...] | Missing:
    """Each GPU's row, or why this is no topology table."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    start = next((at for at, line in enumerate(lines) if "CPU Affinity" in line), None)
    if start is None:
        return Missing("no line names the column `CPU Affinity`: this is no output of nvidia-smi topo -m")
    columns = _HEADER.findall(lines[start])
    devices = _HEADER.split(lines[start])[0].split()
    rows = [_row(line, columns, len(devices)) for line in lines[start + 1 :] if re.match(r"GPU\d+\b", line)]
    return tuple(rows) if rows else Missing("the table has no row of a GPU")


def _row(line: str, columns: list[str], devices: int) -> TopoRow:
    name, *words = line.split()
    links: list[str] = []
    while words and _LINKS.fullmatch(words[0]):
        links += _LINK.findall(words.pop(0))
    cells: dict[str, Cell]
    if len(links) != devices:
        cells = dict.fromkeys(columns, Missing(f"{name} has {len(links)} links to {devices} devices: the cells after them cannot be told"))
    elif len(words) != len(columns):
        # With a cell empty, nothing says which one.
        cells = dict.fromkeys(columns, Missing(f"{name} has {len(words)} values for {len(columns)} columns: some cells are empty"))
    else:
        cells = {column: _cell(column, word) for column, word in zip(columns, words, strict=True)}
    read = {ours: cells.get(column, Missing(f"this layout has no column {column}")) for column, ours in _COLUMNS.items()}
    return TopoRow(int(name[3:]), **read)


def _cell(column: str, word: str) -> Cell:
    if word == "N/A":
        return None
    try:
        numbers = parse_cpus(word)
    except ValueError:
        return Missing(f"{column} holds {word!r}, which is no list of numbers")
    return numbers or Missing(f"{column} holds {word!r}, which names nothing")


def disagreements(rows: tuple[TopoRow, ...], places: dict[int, tuple[frozenset[int], int]]) -> tuple[str, ...]:
    """Where the table contradicts sysfs, GPU by GPU in PCI order.

    `places` gives the CPUs and the number of each GPU's node. Gaps are no contradiction.
    """
    found = []
    for row in rows:
        if row.gpu not in places:
            continue
        cpus, node = places[row.gpu]
        if isinstance(row.numa_affinity, frozenset) and node not in row.numa_affinity:
            found.append(f"GPU{row.gpu}: topo -m says node {min(row.numa_affinity)}, sysfs says node {node}")
        elif isinstance(row.cpu_affinity, frozenset) and not row.cpu_affinity & cpus:
            found.append(f"GPU{row.gpu}: none of the CPUs that topo -m names is on node {node}, where sysfs puts it")
    return tuple(found)
