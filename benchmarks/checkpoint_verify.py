"""How long a check takes beside reading the same file for a SHA-256, in one run: `python benchmarks/checkpoint_verify.py [MEBIBYTES]`."""

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rankpatrol.checkpoints.verifier import Verifier

ROUNDS = 5


def best_seconds(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step_1.pt"
        torch.save({f"layer.{n}": torch.randn(mebibytes << 10) for n in range(256)}, path)
        known = Verifier()
        known.verify(path)
        # All read from the page cache: the disk is the same for each.
        times = {
            "sha256": best_seconds(lambda: sha256(path)),
            "verify": best_seconds(lambda: Verifier().verify(path)),
            "verify, file known": best_seconds(lambda: known.verify(path)),
            "torch.load": best_seconds(lambda: torch.load(path)),
        }
        size = path.stat().st_size
    print(f"{size} bytes, best of {ROUNDS}, from the page cache")
    for name, seconds in times.items():
        print(f"{name:20} {seconds:10.5f} s  {size / seconds / 1e9:8.2f} GB/s  {seconds / times['sha256']:6.3f} of sha256")


if __name__ == "__main__":
    main()
