"""`nvidia-smi topo -m` in all layouts that were seen: read rightly, or refused with the reason."""

import json
from pathlib import Path

import pytest

from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.affinity.topo_m import TopoRow, disagreements, read_topo
from rankpatrol.core.records import Missing

SAMPLES = Path(__file__).parents[1] / "data/affinity/topo"
ANSWERS = json.loads((SAMPLES / "answers.json").read_text())
KINDS = {"absent": "no column", "unknown": "cells"}


def same(cell: object, answer: object, name: str) -> bool:
    if isinstance(answer, str) and answer in KINDS:
        return isinstance(cell, Missing) and KINDS[answer] in cell.reason
    if answer is None:
        return cell is None
    return cell == (parse_cpus(answer) if name == "cpu_affinity" else frozenset([answer] if isinstance(answer, int) else answer))


@pytest.mark.parametrize("sample", ANSWERS, ids=lambda sample: sample["file"])
def test_each_layout_is_read_as_a_person_reads_it(sample: dict) -> None:
    rows = read_topo((SAMPLES / sample["file"]).read_text())
    assert not isinstance(rows, Missing)
    assert [f"GPU{row.gpu}" for row in rows] == list(sample["answers"])
    for row in rows:
        for name, answer in sample["answers"][f"GPU{row.gpu}"].items():
            assert same(getattr(row, name), answer, name), (row, name, answer)


def test_rows_of_network_adapters_are_no_gpus() -> None:
    text = "\tGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPXB\t0-3\t0\nNIC0\tPXB\t X \t\t\n"
    assert read_topo(text) == (TopoRow(0, frozenset(range(4)), frozenset([0]), Missing("this layout has no column GPU NUMA ID")),)


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "no line"), ("GPU0 X 0-3", "no line"), ("\tGPU0\tCPU Affinity\n", "no row"), ("Failed to initialize NVML", "no line")],
)
def test_what_is_no_table_is_refused(text: str, why: str) -> None:
    read = read_topo(text)
    assert isinstance(read, Missing)
    assert why in read.reason


def test_a_row_with_too_few_links_is_not_guessed_at() -> None:
    rows = read_topo("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t0-3\n")
    assert not isinstance(rows, Missing)
    assert isinstance(rows[0].cpu_affinity, Missing)


def test_a_table_that_contradicts_sysfs_is_told() -> None:
    rows = read_topo((SAMPLES / "two_columns.txt").read_text())
    assert not isinstance(rows, Missing)
    there = {0: (parse_cpus("4-7,12-15"), 1), 1: (parse_cpus("4-7,12-15"), 1)}
    assert disagreements(rows, there) == ("GPU0: topo -m says node 0, sysfs says node 1",)
