"""How fast `diagnose` reads logs, and what memory it takes: mixed rank logs of a given size, with failures in the middle and at the end.

usage: python benchmarks/logs.py [--mb 1024] [--ranks 512] [--folder]

The case of many small files, one a rank: --folder --mb 256 --ranks 511.
"""

import argparse
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rankpatrol.intake.diagnose import diagnose

WORK = "WorkNCCL(SeqNum=81233, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000)"
FORMS = (
    "[rank{r}]: 2026-07-22 08:{m:02}:{s:02},{k:03} INFO train.py:88 step {n} loss {a:.4f} lr 3.0e-4 tokens/s {b:.1f} grad_norm {a:.3f}\n",
    " [2026-07-22 08:{m:02}:{s:02}] iteration {n:8d}/  500000 | elapsed time per iteration (ms): {b:.1f} | lm loss: {a:.6E} |\n",
    "(TrainActor pid={r}, ip=10.0.0.{r}) [rank{r}]: {{'loss': {a:.4f}, 'grad_norm': {b:.4f}, 'epoch': 0.{k}}}\n",
    "[rank{r}]:[W722 08:{m:02}:{s:02}.{k:09} TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67, addr=[n{r}]:3): Broken pipe\n",
    "wandb: \rTraining: {n}/500000 [{m:02}:{s:02}<10:00:00, 3.1it/s, loss={a:.3f}]\n",
    '{m:02}:{s:02}.{k:03} INFO:     10.0.0.11:41657 - "GET /metrics HTTP/1.1" 200 OK\n',
    "DEBUG sample {x} tokens {y} hash {z}\n",
)
WEIGHTS = (50, 20, 20, 0.1, 5, 4, 0.9)


def lines(size_bytes: int, ranks: int, seed: int = 7) -> Iterator[str]:
    chosen = random.Random(seed)
    done = n = 0
    while done < size_bytes:
        n += 1
        words = {"x": chosen.getrandbits(40), "y": f"{chosen.getrandbits(64):x}", "z": f"{chosen.getrandbits(128):x}"}
        line = chosen.choices(FORMS, WEIGHTS)[0].format(
            r=n % ranks, n=n // ranks, m=n // 60 % 60, s=n % 60, k=n % 1000, a=chosen.random() * 3, b=chosen.random() * 900, **words
        )
        done += len(line)
        yield line


def end(ranks: int) -> str:
    absent = ranks // 3
    return "".join(
        f"[rank{r}]:[E722 09:00:10.118820000 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
        f"{WORK} ran for 600{r % 1000:03} milliseconds before timing out.\n"
        for r in range(ranks)
        if r != absent
    )


def write(folder: Path, size_bytes: int, ranks: int, *, one_a_rank: bool) -> None:
    block = "".join(lines(32 << 20, ranks))
    if not one_a_rank:
        path = folder / "job.log"
        with path.open("w") as file:
            for _ in range(max(1, size_bytes // len(block))):
                file.write(block)
            file.write(end(ranks))
        return
    share = block[: max(1 << 16, size_bytes // ranks)]
    for rank, line in enumerate(end(ranks).splitlines(keepends=True)):
        (folder / f"rank{rank}.log").write_text(share + line)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--mb", type=int, default=1024)
    options.add_argument("--ranks", type=int, default=512)
    options.add_argument("--folder", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        # Written by another process: what writing takes is not what reading takes.
        writer = multiprocessing.Process(
            target=write, args=(Path(name), chosen.mb << 20, chosen.ranks), kwargs={"one_a_rank": chosen.folder}
        )
        writer.start()
        writer.join()
        paths = [name]
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, cpu_began = time.perf_counter(), time.process_time()
        answer = diagnose(tuple(paths))
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = answer.bytes_read / 1e6
    print(f"{megabytes:.0f} MB in {answer.files} files, {chosen.ranks} ranks: {seconds:.1f} s, {megabytes / seconds:.0f} MB/s")
    print(f"processor time {cpu_s:.1f} s, {answer.bytes_read / 1e6 / cpu_s:.0f} MB/s of one core")
    print(f"peak memory {peak_kb / 1024:.0f} MB (before reading {before_kb / 1024:.0f} MB)")
    print(
        f"answer: {answer.diagnosis.verdict} / {answer.diagnosis.cause} {answer.diagnosis.culprit_ranks}: {answer.diagnosis.sentence[:120]}"
    )


if __name__ == "__main__":
    main()
