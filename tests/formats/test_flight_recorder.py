import contextlib
import json
import os
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankpatrol.core.errors import BadInput
from rankpatrol.core.snapshot import FlightRecording, Frame, GroupStatus
from rankpatrol.formats.flight_recorder import group_key, parse_json, parse_pickle
from rankpatrol.formats.safe_pickle import NotPlain, plain_value

DATA = Path(__file__).parent.parent / "data" / "flight_recorder"
DUMPS = sorted(path for path in DATA.glob("*/*.pickle") if path.with_suffix(".json").exists())
ENTRY = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 7, "process_group": ["0", "default_pg"]}


def real(name: str) -> bytes:
    return (DATA / name).read_bytes()


def dump(**facts: object) -> bytes:
    return json.dumps({"version": "2.10", "entries": [ENTRY], **facts}).encode()


def without_frames(recording: FlightRecording) -> list[object]:
    return [(each.group, each.sequence, each.operation, each.retired, each.input_sizes, each.timeout_s) for each in recording.entries]


def test_an_entry_tells_what_ran_where_and_whether_it_is_over() -> None:
    last = parse_pickle(real("hang/rank0.pickle")).entries[-1]
    assert (last.group, last.sequence, last.operation, last.retired) == ("default_pg", 6, "all_reduce", False)
    assert (last.input_sizes, last.input_dtypes, last.timeout_s, last.is_p2p) == (((16, 4),), ("Float",), 600.0, False)
    assert [frame.name for frame in last.frames] == ["all_reduce", "wrapper", "train_step", "<module>"]
    assert last.frames[2] == Frame("train_step", "/home/u/fr_hang.py", 32)


def test_status_has_the_groups_names_and_numbers_in_both_formats() -> None:
    for recording in (parse_json(real("hang/rank0.json")), parse_pickle(real("hang/rank0.pickle"))):
        assert recording.status["default_pg"] == GroupStatus(enqueued=6, started=-1, completed=5)
        assert recording.status["1:pair01"] == GroupStatus(enqueued=5, started=-1, completed=5)


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_json_and_pickle_of_one_rank_say_the_same_but_for_frames(path: Path) -> None:
    by_json, by_pickle = parse_json(path.with_suffix(".json").read_bytes()), parse_pickle(path.read_bytes())
    assert without_frames(by_json) == without_frames(by_pickle)
    assert by_json.status == by_pickle.status
    assert not any(each.frames for each in by_json.entries)


def test_the_pickle_says_what_pickle_load_says() -> None:
    for path in DUMPS:
        assert plain_value(path.read_bytes()) == pickle.loads(path.read_bytes())


def test_a_nameless_group_of_gloo_has_no_members_even_where_it_lists_some() -> None:
    assert b"[0, 1, 2, 3]" in real("hang/rank2.json")
    assert parse_json(real("hang/rank2.json")).members == {}


def test_members_are_told_where_the_group_has_its_name() -> None:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}, "3": {"name": "3", "desc": "tp", "ranks": "[5]"}}
    assert parse_json(dump(pg_config=groups)).members == {"default_pg": (0, 1), "3:tp": (5,)}


@pytest.mark.parametrize(
    ("name", "desc", "key"), [("0", "default_pg", "default_pg"), ("3", "tp", "3:tp"), ("3", "undefined", "3"), ("3", "", "3")]
)
def test_a_groups_key_has_its_description_where_there_is_one(name: str, desc: str, key: str) -> None:
    assert group_key(name, desc) == key


def test_a_dump_without_entries_is_an_empty_recording() -> None:
    assert parse_json(b'{"version": "2.10", "pg_status": {}}').entries == ()


def test_a_group_whose_entries_left_the_ring_is_still_known_to_exist() -> None:
    status = {"0": {"last_enqueued_collective": "7"}, "4": {"last_enqueued_collective": "2"}}
    assert parse_json(dump(pg_status=status)).status == {
        "default_pg": GroupStatus(enqueued=7, started=-1, completed=-1),
        "pg_id 4": GroupStatus(enqueued=2, started=-1, completed=-1),
    }


def test_schema_one_has_other_names_and_no_retired() -> None:
    old = {"version": "1.5", "entries": [{"seq_id": 3, "pg_id": 2, "profiling_name": "nccl:all_gather", "state": "completed", "new": [1]}]}
    entry = parse_json(json.dumps(old).encode()).entries[0]
    assert (entry.group, entry.sequence, entry.operation, entry.retired) == ("pg_id 2", 3, "all_gather", True)


def test_point_to_point_counts_by_its_own_sequence() -> None:
    entry = {**ENTRY, "is_p2p": True, "p2p_seq_id": 2, "profiling_name": "nccl:send 0->1"}
    seen = parse_json(dump(entries=[entry])).entries[0]
    assert (seen.sequence, seen.operation, seen.is_p2p) == (2, "send 0->1", True)


def test_unknown_fields_are_ignored() -> None:
    assert parse_json(dump(nccl_comm_state={"a": {"b": "c"}}, comm_lib_version="2.29.3", later=[{"x": [1]}])).entries[0].sequence == 7


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no flight recorder dump"),
        (b"[]", "Expected `object`"),
        (b'{"entries": []}', "version"),
        (dump(version="3.0"), "version '3.0' is not known"),
        (dump(entries=[{"profiling_name": "x"}]), "no sequence number"),
        (dump(entries=[{**ENTRY, "input_sizes": 3}]), "input_sizes"),
        (b'{"x":' + b"[" * 100_000, "no flight recorder dump"),
    ],
)
def test_anything_else_is_refused_with_its_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadInput, match="no flight recorder dump") as refused:
        parse_json(data)
    assert why in str(refused.value)


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_dump_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"version": "2.10", "entries": [Harm(tmp_path / "harmed")]}, protocol)
    with pytest.raises(BadInput, match="none of plain values"):
        parse_pickle(data)
    assert not (tmp_path / "harmed").exists()
    pickle.loads(data)
    assert (tmp_path / "harmed").exists()


HUGE = [
    b"\x80\x02r\xff\xff\xff\xff.",
    b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x02" + b"(" * 1000 + b".",
    b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    b"\x80\x02]q\x00" + b"(" + b"h\x00" * 1_000 + b"e.",
]


@pytest.mark.parametrize("data", HUGE)
def test_a_small_dump_that_would_take_all_memory_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        parse_pickle(data)


def test_a_number_of_many_bytes_is_refused() -> None:
    with pytest.raises(NotPlain, match="takes 255 bytes"):
        plain_value(b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".")


def test_values_deep_in_each_other_and_keys_of_many_parts_are_refused() -> None:
    with pytest.raises(NotPlain, match="deep in each other"):
        plain_value(b"\x80\x02" + b"](" * 100 + b"e" * 100 + b".")
    with pytest.raises(NotPlain, match="neither text nor a number"):
        plain_value(pickle.dumps({(1, 2): 3}, 2))


def test_lists_that_hold_a_list_many_times_are_counted_unfolded() -> None:
    layers = b"".join(b"](" + b"h%c" % layer * 200 + b"eq%c" % (layer + 1) for layer in range(4))
    with pytest.raises(NotPlain, match="unfolds to more than"):
        plain_value(b"\x80\x02]q\x00" + layers + b".")


def test_a_dump_cut_anywhere_is_refused() -> None:
    data = real("hang/rank3.pickle")
    for length in range(len(data)):
        with pytest.raises(BadInput):
            parse_pickle(data[:length])
    text = real("hang/rank3.json").rstrip()
    for length in range(len(text)):
        with pytest.raises(BadInput):
            parse_json(text[:length])


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(["hang/rank0.pickle", "hang/rank0.json"]), st.lists(st.tuples(st.integers(0, 2600), st.binary(max_size=3)), max_size=5)
)
def test_a_spoiled_dump_is_read_or_refused(name: str, spots: list[tuple[int, bytes]]) -> None:
    data = bytearray(real(name))
    for at, bytes_ in spots:
        data[at : at + len(bytes_)] = bytes_
    parse = parse_json if name.endswith("json") else parse_pickle
    with contextlib.suppress(BadInput):
        assert isinstance(parse(bytes(data)), FlightRecording)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (parse_json, parse_pickle):
        with pytest.raises(BadInput):
            parse(data)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**62) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner) | st.tuples(inner, inner),
    max_leaves=40,
)


@settings(deadline=None)
@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_out_as_they_went_in(value: object, protocol: int) -> None:
    assert plain_value(pickle.dumps(value, protocol)) == value
