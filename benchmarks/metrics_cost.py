"""What metrics cost the agent of eight ranks: each round, and each scrape, beside a round without them."""

import json
import time
from collections.abc import Callable

import msgspec

from rankpatrol.agent.goodput_so_far import GoodputSoFar
from rankpatrol.metrics.collector import exposition
from rankpatrol.metrics.records import JobNow, Reading
from rankpatrol.metrics.tally import added, total

_RANKS = [{"rank": rank, "node": "n1", "state": "training", "phase": "train_step", "still_for_s": 0.1, "step": 9} for rank in range(8)]
_STATE = json.dumps({"at_unix_s": 1.8e9, "job": "train", "step": 9, "ranks": _RANKS}).encode()


def main() -> None:
    """A round decodes the state that the agent has written anyway and adds one event; a minute counts where the time went."""
    progress = [{"at_unix_s": 1.8e9 + second, "kind": "progress", "attempt": 0, "step": second} for second in range(100_000)]
    tally, now = total(progress), msgspec.json.decode(_STATE, type=JobNow)
    so_far = GoodputSoFar()
    for event in progress:
        so_far.hear(event)
    round_us = cpu_us(lambda: msgspec.json.decode(_STATE, type=JobNow)) + cpu_us(lambda: added(tally, progress[-1]))
    scrape_us, count_us = cpu_us(lambda: exposition([Reading(now=now, tally=tally)])), cpu_us(lambda: so_far._count(1.9e9), 10)
    ratio = round_us / 1e6 + (scrape_us * 2 / 15 + count_us / 60) / 1e6
    print(f"a round {round_us:.0f} us, a scrape {scrape_us:.0f} us, goodput of a day {count_us:.0f} us a minute")
    print(f"with a scrape and a file each 15 s: {ratio:.3%} of a core")


def cpu_us(deed: Callable[[], object], times: int = 300) -> float:
    """CPU time of one call, in the mean."""
    deed()
    began = time.process_time()
    for _ in range(times):
        deed()
    return (time.process_time() - began) / times * 1e6


if __name__ == "__main__":
    main()
