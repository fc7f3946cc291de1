"""Lists of CPUs and topologies, by the names of their columns."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.records import Missing
from rankpatrol.formats.cpu_list import parse_cpus, say_cpus
from rankpatrol.formats.file_listing import parse_listing
from rankpatrol.formats.process_listing import parse_processes
from rankpatrol.formats.topo_matrix import parse_topo

TOPO = Path(__file__).parents[1] / "data" / "told" / "topo"
CASES = [(case["file"], gpu, row) for case in json.loads((TOPO / "answers.json").read_text()) for gpu, row in case["answers"].items()]


@pytest.mark.parametrize(("file", "gpu", "expected"), CASES)
def test_each_value_is_found_below_its_own_name(file, gpu, expected):
    row = next(row for row in parse_topo((TOPO / file).read_text()) if row.gpu == gpu)
    words = {"cpu_affinity": row.cpus, "numa_affinity": row.numa, "gpu_numa_id": row.memory_node}
    for name, found in words.items():
        if expected[name] in {"absent", "unknown"} if isinstance(expected[name], str) else False:
            assert isinstance(found, Missing)
        elif name == "cpu_affinity":
            assert say_cpus(found) == expected[name]
        else:
            assert found == (tuple(expected[name]) if isinstance(expected[name], list) else expected[name])


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_of_cpus_survives_being_said(cpus):
    assert parse_cpus(say_cpus(frozenset(cpus))) == cpus


@pytest.mark.parametrize(
    ("words", "cpus"), [("0xff", range(8)), ("[0, 1]", range(2)), ("0 1 2", range(3)), ("{}", ()), ("N/A", None), ("a-b", None)]
)
def test_lists_of_cpus_in_many_words(words, cpus):
    assert parse_cpus(words) == (None if cpus is None else frozenset(cpus))


def test_sizes_and_targets_of_a_listing():
    text = (
        "ckpt:\n-rw-r--r-- 1 u u 12 Mar  5 21:56 a.pt\nlrwxrwxrwx 1 u u 4 Mar  5 21:56 latest -> s_10\n\n1.5G\tother/b.pt\nc.pt: 77 bytes\n"
    )
    found = [(each.path, each.size_bytes, each.target) for each in parse_listing(text)]
    assert ("ckpt/a.pt", 12, None) in found
    assert ("ckpt/latest", 4, "s_10") in found
    assert ("other/b.pt", 3 << 29, None) in found


@given(st.text(max_size=300))
def test_nothing_raises(text):
    parse_listing(text)
    parse_topo(f"\tGPU0\tCPU Affinity\nGPU0 {text}")
    parse_processes(f"  PID  PPID STAT CMD\n{text}")
    parse_cpus(text)
