"""What reading and judging many ranks' pasted stacks costs, beside reading their lines alone.

Usage: python benchmarks/stacks.py [RANKS] [THREADS]
"""

import sys
import time
from collections.abc import Callable

from rankpatrol.analysis.told.stacks import diagnose_stacks
from rankpatrol.formats.stack_text import parse_stacks

_WAITS = "    all_reduce (torch/distributed/distributed_c10d.py:2810)\n    wrapper (torch/distributed/c10d_logger.py:83)\n"
_READS = "    get (multiprocessing/queues.py:113)\n    _try_get_data (torch/utils/data/dataloader.py:1243)\n"
_BELOW = "".join(f"    layer_{at} (model/blocks.py:{at})\n" for at in range(24)) + "    main (train.py:70)\n    <module> (train.py:88)\n"
_IDLE = "    wait (threading.py:327)\n    _feed (multiprocessing/queues.py:231)\n    _bootstrap (threading.py:1002)\n"
_CULPRIT = 3
_MOST_S = 2.0


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    text = "".join(made(rank, threads) for rank in range(ranks))
    lines = timed(lambda: [line.split() for line in text.splitlines()])
    parsed = timed(lambda: parse_stacks(text))
    judged = timed(lambda: diagnose_stacks(text))
    found = diagnose_stacks(text)
    print(f"{ranks} ranks, {len(text) / 1e6:.1f} MB, {text.count(chr(10))} lines: {found.sentence if found else 'no answer'}")
    print(f"lines alone {lines:.2f} s; parsed {parsed:.2f} s ({parsed / lines:.1f} x); judged, parsing included {judged:.2f} s")
    if found is None or found.culprit_ranks != (_CULPRIT,) or judged > _MOST_S:
        raise SystemExit(f"expected rank {_CULPRIT} within {_MOST_S} s")


def made(rank: int, threads: int) -> str:
    pid = 4000 + 100 * rank
    head = (
        f'## rank={rank} node=n{rank // 8} pid={pid}\nProcess {pid}: python train.py\nPython v3.11.7\n\nThread {pid} (idle): "MainThread"\n'
    )
    own = (_READS if rank == _CULPRIT else _WAITS) + _BELOW
    return head + own + "".join(f'Thread {pid + at} (idle): "QueueFeederThread"\n{_IDLE}' for at in range(1, threads)) + "\n"


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
