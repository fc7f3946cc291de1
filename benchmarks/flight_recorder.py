"""What reading and comparing many ranks' flight recordings costs, an entry, beside json.loads and pickle.loads of the same dumps.

Usage: python benchmarks/flight_recorder.py [RANKS] [ENTRIES]
"""

import gc
import json
import pickle
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rankpatrol.analysis.collectives import find_desync
from rankpatrol.core.snapshot import FlightRecording
from rankpatrol.formats.flight_recorder import parse_json, parse_pickle

_FRAMES = [{"name": name, "filename": f"/opt/app/{name}.py", "line": 40} for name in ("reduce", "step", "epoch", "main")]
_CULPRIT = 3
_GROUP_SIZE = 8
_PICKLED_RANKS = 16


def main() -> None:
    gc.disable()  # its passes over what is kept would be charged to whoever allocates next
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    entries = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    spent = dict.fromkeys(("json.loads", "parse_json", "pickle.loads", "parse_pickle"), 0.0)
    recordings: dict[int, FlightRecording] = {}
    for rank in range(ranks):
        dump = made(rank, ranks, entries)
        if rank < _PICKLED_RANKS:
            as_pickle = pickle.dumps(dump, 2)
            timed(spent, "pickle.loads", partial(pickle.loads, as_pickle))
            timed(spent, "parse_pickle", partial(parse_pickle, as_pickle))
        for entry in dump["entries"]:
            del entry["frames"]
        as_json = json.dumps(dump).encode()
        timed(spent, "json.loads", partial(json.loads, as_json))
        recordings[rank] = timed(spent, "parse_json", partial(parse_json, as_json))
    blocked = frozenset(range(ranks)) - {_CULPRIT}
    found = timed(spent, "find_desync", partial(find_desync, recordings, recordings, {}, ranks, blocked))
    assert found.ranks == (_CULPRIT,), found
    for name, seconds in spent.items():
        read = entries * (min(ranks, _PICKLED_RANKS) if "pickle" in name else ranks)
        print(f"{name:13} {seconds / read * 1e6:7.2f} us an entry, {seconds:7.2f} s for {read}")
    whole = spent["parse_json"] + spent["find_desync"]
    print(f"parse_json and find_desync take {whole / spent['json.loads']:.2f} times what json.loads alone takes")
    print(f"{ranks} ranks x {entries} entries, at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB resident")


def timed(spent: dict[str, float], name: str, do: Callable[[], Any]) -> Any:
    began = time.process_time()
    value = do()
    spent[name] = spent.get(name, 0.0) + time.process_time() - began
    return value


def made(rank: int, ranks: int, entries: int) -> dict[str, Any]:
    """The ring of a rank that runs one world all_reduce to three of its tensor group; one rank misses the last of the world."""
    number, peers = 1 + rank // _GROUP_SIZE, range(rank // _GROUP_SIZE * _GROUP_SIZE, min((rank // _GROUP_SIZE + 1) * _GROUP_SIZE, ranks))
    counts = {0: 0, number: 0}
    ring = []
    for at in range(entries):
        last = at == entries - 1
        group = 0 if at % 4 == 3 or last else number
        counts[group] += 1
        if last and rank == _CULPRIT:
            counts[group] -= 1
            break
        ring.append(made_entry(at, group, "default_pg" if group == 0 else "tp", counts[group], done=not last))
    return {
        "version": "2.10",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))},
            str(number): {"name": str(number), "desc": "tp", "ranks": str(list(peers))},
        },
        "pg_status": {
            str(group): {"last_enqueued_collective": count, "last_started_collective": count, "last_completed_collective": count}
            for group, count in counts.items()
        },
        "entries": ring,
    }


def made_entry(record: int, group: int, desc: str, sequence: int, *, done: bool) -> dict[str, Any]:
    return {
        "frames": _FRAMES,
        "record_id": record,
        "pg_id": group,
        "process_group": [str(group), desc],
        "thread_name": "python",
        "thread_id": "140364688722816",
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_795_955_000_000_000_000 + record,
        "input_sizes": [[4096, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4096, 8]],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": 1_795_955_000_001_000_000 + record,
        "time_discovered_completed_ns": 1_795_955_000_002_000_000 + record,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


if __name__ == "__main__":
    main()
