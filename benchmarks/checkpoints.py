"""How fast checkpoints are checked beside `cat FILES > /dev/null`: `python benchmarks/checkpoints.py [GIGABYTES] [FOLDER]`.

Each round reads the same files twice, by cat and by us, one after the other, in turns; once from the disk (the files are dropped from the
page cache before, posix_fadvise(2)) and once from memory. The files are removed afterwards.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from rankpatrol.checkpoints.ledger import Ledger
from rankpatrol.checkpoints.set_verifier import SetVerifier
from rankpatrol.checkpoints.verifier import Closeness, Verifier

ROUNDS = 3
SHARDS = 4


def write(folder: Path, gigabytes: float) -> None:
    """Four torch files, as four ranks write them; half of them again as safetensors, which have no checksums."""
    count = int(gigabytes * 1e9 / 4 / SHARDS / 32)
    for rank in range(SHARDS):
        state = {f"layer.{n}": torch.rand(count) for n in range(32)}
        torch.save(state, folder / f"model_world_size_{SHARDS}_rank_{rank}.pt")


def drop(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as name:
        folder = Path(name) / "step_1"
        folder.mkdir()
        if shutil.disk_usage(folder).free < 2 * gigabytes * 1e9:
            sys.exit(f"there is no room for {gigabytes} GB in {folder}")
        write(folder, gigabytes)
        size = sum(path.stat().st_size for path in folder.iterdir())
        files = sorted(folder.iterdir())
        cores = len(os.sched_getaffinity(0))

        def cat() -> None:
            with Path("/dev/null").open("wb") as null:
                subprocess.run(["cat", *files], stdout=null, check=True)

        def check() -> None:
            assert SetVerifier(Verifier(), at_once=min(4, cores)).verify(folder).content_verified

        def structure() -> None:
            assert SetVerifier(Verifier(closeness=Closeness(content=False))).verify(folder).verdict == "ok"

        ledger = Ledger()
        SetVerifier(Verifier(ledger=ledger)).verify(folder)

        def second() -> None:
            assert SetVerifier(Verifier(ledger=ledger)).verify(folder).verdict == "ok"

        print(f"{size / 1e9:.2f} GB in {len(files)} files, {cores} cores, {ROUNDS} rounds, medians")
        for where, before in (("from the disk", drop), ("from memory", lambda _: None)):
            took: dict[str, list[float]] = {"cat": [], "check": []}
            for turn in range(ROUNDS):
                pair = [("cat", cat), ("check", check)]
                for what, work in pair if turn % 2 == 0 else reversed(pair):
                    before(folder)
                    took[what].append(seconds(work))
            rates = {what: size / median(each) / 1e9 for what, each in took.items()}
            share = rates["check"] / rates["cat"]
            began = time.process_time()
            check()
            cpu_s = (time.process_time() - began) / size * 1e9
            said = f"cat {rates['cat']:5.2f} GB/s   check {rates['check']:5.2f} GB/s   {share:6.0%} of cat   {cpu_s:.2f} s of CPU a GB"
            print(f"{where:14} {said}")
        drop(folder)
        cold = seconds(structure)
        warm = min(seconds(structure) for _ in range(ROUNDS))
        print(f"structure alone {cold / size * 1e12:.1f} ms a GB from the disk, {warm / size * 1e12:.1f} from memory")
        print(f"a second look   {min(seconds(second) for _ in range(ROUNDS)) * 1e3:.1f} ms in all")


if __name__ == "__main__":
    main()
