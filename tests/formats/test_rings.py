"""A ring holds what the dump says, however much of it was stepped over by its bytes."""

import contextlib
import json
import os
import pickle
import random
import resource
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankpatrol.core.errors import BadInput
from rankpatrol.core.rings import Ring
from rankpatrol.core.snapshot import Collective
from rankpatrol.formats.flight_recorder import parse_json, parse_pickle
from rankpatrol.formats.rings import Calls, parse_ring
from rankpatrol.formats.safe_pickle import plain_value, value_with_alike

DATA = Path(__file__).parent.parent / "data" / "flight_recorder"
PICKLES = sorted(DATA.glob("*/*.pickle"))
NS = 1_795_955_000_000_000_000
FRAMES = [{"name": "step", "filename": "/home/u/train.py", "line": 7}, {"name": "main", "filename": "/home/u/train.py", "line": 70}]


def entries_of(ring: Ring, calls: Calls) -> tuple[Collective, ...]:
    return tuple(
        msgspec.structs.replace(calls.known[number], sequence=sequence) for number, sequence in zip(ring.calls, ring.sequences, strict=True)
    )


def a_dump(rng: random.Random, length: int) -> dict[str, object]:
    """A ring with operations of several groups, some of them point to point, as NCCL's or gloo's recorder would hold it."""
    kinds = [(rng.choice(["0", "1", "7"]), rng.choice(["all_reduce", "send 0->1"]), rng.randrange(1, 70_000)) for _ in range(4)]
    counts: dict[tuple[str, bool], int] = dict.fromkeys([(group, p2p) for group in "017" for p2p in (True, False)], rng.randrange(70_000))
    entries = []
    for number in range(length):
        group, operation, size = kinds[rng.choice([0, 0, 0, 1, 1, 2, 3])]
        p2p = operation.startswith("send")
        counts[group, p2p] += 1
        over = number < length - 2
        entries.append({
            "frames": rng.choice([FRAMES, FRAMES[1:]]),
            "record_id": number,
            "pg_id": int(group),
            "process_group": (group, "default_pg" if group == "0" else "tp"),
            "collective_seq_id": 0 if p2p else counts[group, p2p],
            "p2p_seq_id": counts[group, p2p] if p2p else 0,
            "op_id": number,
            "profiling_name": f"nccl:{operation}",
            "time_created_ns": NS + number,
            "input_sizes": [[size, 8]],
            "input_dtypes": ["Float"],
            "output_sizes": [[size, 8]],
            "output_dtypes": ["Float"],
            "state": "completed" if over else "started",
            "time_discovered_started_ns": NS + number if rng.random() < 0.9 else None,
            "time_discovered_completed_ns": NS + number if over else None,
            "retired": over,
            "timeout_ms": 600_000,
            "is_p2p": p2p,
            **({"duration_ms": 3.25} if over else {}),
        })  # fmt: skip
    return {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries}


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_real_ring_says_what_the_whole_reading_says(path: Path) -> None:
    calls = Calls()
    whole, ring = parse_pickle(path.read_bytes()), parse_ring(path.read_bytes(), calls)
    assert entries_of(ring, calls) == whole.entries
    assert (ring.version, ring.members, ring.status) == (whole.version, whole.members, whole.status)


@pytest.mark.parametrize("path", [path.with_suffix(".json") for path in PICKLES if path.with_suffix(".json").exists()], ids=str)
def test_json_and_a_bundles_recording_say_the_same(path: Path) -> None:
    calls = Calls()
    whole = parse_json(path.read_bytes())
    for data in (path.read_bytes(), msgspec.json.encode(whole)):
        ring = parse_ring(data, calls)
        assert entries_of(ring, calls) == whole.entries
        assert (ring.members, ring.status) == (whole.members, whole.status)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 40, 300]), st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_entries_that_were_stepped_over_are_as_the_whole_reading_has_them(seed: int, length: int, protocol: int) -> None:
    data = pickle.dumps(a_dump(random.Random(seed), length), protocol)
    calls = Calls()
    assert entries_of(parse_ring(data, calls), calls) == parse_pickle(data).entries


def test_most_of_a_long_ring_is_stepped_over() -> None:
    data = pickle.dumps(a_dump(random.Random(1), 2000), 2)
    value = value_with_alike(data, lambda each: "collective_seq_id" if "profiling_name" in each and not each["is_p2p"] else None)
    assert isinstance(value, dict)
    read = [each for each in value["entries"] if isinstance(each, dict) and not each["is_p2p"]]
    assert len(read) < 40


def test_the_oldest_open_operation_tells_since_when_its_rank_waits() -> None:
    data = a_dump(random.Random(2), 50)
    assert parse_ring(pickle.dumps(data, 2), Calls()).pending_since_unix_s == pytest.approx((NS + 48) / 1e9)
    for entry in data["entries"]:
        entry.update(retired=True, state="completed")
    assert parse_ring(json.dumps(data).encode(), Calls()).pending_since_unix_s is None


def test_ranks_that_did_the_same_share_their_calls_and_members() -> None:
    calls = Calls()
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    first, second = (parse_ring(pickle.dumps({**a_dump(random.Random(3), 90), "pg_config": config}, 2), calls) for _ in range(2))
    assert first.calls == second.calls
    assert first.members["default_pg"] is second.members["default_pg"]


def test_a_rank_that_is_told_inside_is_known() -> None:
    assert parse_ring(json.dumps({"rank": 7, **a_dump(random.Random(4), 3)}).encode(), Calls()).rank == 7


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_dump_that_would_run_code_is_refused_wherever_it_stands(tmp_path: Path, protocol: int, place: int) -> None:
    dump = a_dump(random.Random(5), 40)
    dump["entries"][place]["input_sizes"] = Harm(tmp_path / "harmed")
    with pytest.raises(BadInput, match="none of plain values"):
        parse_ring(pickle.dumps(dump, protocol), Calls())
    assert not (tmp_path / "harmed").exists()


GLOBALS = [
    b"cos\nsystem\n(S'true'\ntR.",
    b"(ios\nsystem\n.",
    b"(cos\nsystem\noo.",
    b"\x80\x02\x82\x01.",
    b"\x80\x02\x83\x01\x00.",
    b"\x80\x02\x84\x01\x00\x00\x00.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    b"\x80\x02P1\n.",
    b"\x80\x02K\x01Q.",
    b"\x80\x04)\x81.",
    b"\x80\x02}b.",
    b"\x80\x05\x97.",
]


@pytest.mark.parametrize("data", GLOBALS)
def test_every_opcode_that_reaches_outside_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        parse_ring(data, Calls())


BOMBS = [
    b"\x80\x02]r\xff\xff\xff\xff.",
    b"\x80\x02]p4294967295\n.",
    b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x02" + b"]" * 100_000,
    b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % layer * 200 + b"eq%c" % (layer + 1) for layer in range(4)) + b".",
    b"\x80\x02}" + b"".join(b"h%ch%c\x86q%c" % (layer, layer, layer + 1) if layer else b"K\x01q\x01" for layer in range(60)) + b"K\x01s.",
    b'{"entries":' + b"[" * 500_000,
    b'{"version": "2.10", "entries": [{"profiling_name": "a", "collective_seq_id": 1' + b"0" * 400 + b"}]}",
]


@pytest.mark.parametrize("data", BOMBS, ids=range(len(BOMBS)))
def test_a_small_dump_that_would_take_all_memory_or_time_is_refused(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadInput):
        parse_ring(data, Calls())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


REAL = {name: (DATA / name).read_bytes() for name in ("hang/rank0.pickle", "hang/rank0.json", "skip/rank0.pickle")}
MADE = pickle.dumps(a_dump(random.Random(6), 12), 2)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([*REAL.values(), MADE]), st.lists(st.tuples(st.integers(0, 2600), st.binary(max_size=3)), max_size=5))
def test_a_spoiled_dump_is_read_or_refused(whole: bytes, spots: list[tuple[int, bytes]]) -> None:
    data = bytearray(whole)
    for at, bytes_ in spots:
        data[at : at + len(bytes_)] = bytes_
    with contextlib.suppress(BadInput):
        assert isinstance(parse_ring(bytes(data), Calls()), Ring)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        parse_ring(data, Calls())


def test_a_dump_cut_anywhere_is_refused() -> None:
    for length in range(len(MADE)):
        with pytest.raises(BadInput):
            parse_ring(MADE[:length], Calls())


def test_a_value_that_was_stepped_over_and_is_recalled_later_is_still_read() -> None:
    """An entry's own list is named once more behind all entries: the pattern has not kept it, the whole reading has."""
    dump = a_dump(random.Random(7), 30)
    dump["comm_lib_version"] = dump["entries"][20]["input_sizes"]
    data = pickle.dumps(dump, 2)
    calls = Calls()
    assert entries_of(parse_ring(data, calls), calls) == parse_pickle(data).entries
    assert plain_value(data) == dump
