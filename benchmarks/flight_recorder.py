"""What it costs to name the missing rank from a folder of flight recorder dumps, beside torch's own torchfrtrace on the same files.

Usage: python benchmarks/flight_recorder.py [RANKS] [ENTRIES] [--no-torchfrtrace]

Both run as processes of their own; CPU seconds and resident memory are what the kernel counted for them, starting Python included.
1024 ranks of 2000 entries are 490 MB of dumps, three minutes of CPU and 5 GB of memory for torchfrtrace.
"""

import os
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_FRAMES = [{"name": name, "filename": f"/opt/app/{name}.py", "line": 40} for name in ("reduce", "step", "epoch", "main")]
_CULPRIT = 3
_GROUP_SIZE = 8
_OURS = """
import sys
from pathlib import Path
from rankpatrol.analysis.told.recordings import diagnose_recordings
from rankpatrol.intake.recordings import read_recordings
recordings, unread = read_recordings([Path(sys.argv[1])])
found = diagnose_recordings(recordings)
print(found.cause, found.culprit_ranks, f"{len(recordings.rings)} read, {len(unread)} not")
"""
_PLAIN = """
import pickle, sys
from pathlib import Path
for path in Path(sys.argv[1]).iterdir():
    pickle.loads(path.read_bytes())
"""


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    ranks, entries = (*numbers, 64, 2000)[:2] if len(numbers) != 1 else (numbers[0], 2000)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            Path(folder, f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(made(rank, ranks, entries), 2))
        size_mb = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        print(f"{ranks} ranks x {entries} entries, {size_mb:.0f} MB", flush=True)
        ours_s = measured("rankpatrol", [sys.executable, "-c", _OURS, folder], folder)
        measured("pickle.loads alone", [sys.executable, "-c", _PLAIN, folder], folder)
        if "--no-torchfrtrace" not in sys.argv:
            theirs = [str(Path(sys.executable).with_name("torchfrtrace")), folder, "-p", "nccl_trace_rank_"]
            theirs_s = measured("torchfrtrace", theirs, folder)
            print(f"torchfrtrace takes {theirs_s / ours_s:.0f} times the CPU")


def measured(name: str, words: list[str], folder: str) -> float:
    """The CPU seconds of one process; its last line of output is shown."""
    with tempfile.TemporaryFile(dir=Path(folder).parent) as output:
        began = time.monotonic()
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        pid = os.posix_spawnp(words[0], words, os.environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    told = next((line for line in lines if "missing ranks" in line), lines[-1] if lines else "")
    cpu_s = used.ru_utime + used.ru_stime
    print(
        f"{name:18} {cpu_s:7.2f} s CPU, {time.monotonic() - began:7.1f} s, {used.ru_maxrss / 1024:6.0f} MB resident, "
        f"exit {os.waitstatus_to_exitcode(status)}: {told[-100:]}",
        flush=True,
    )
    return cpu_s


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
