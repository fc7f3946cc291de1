"""How fast checkpoints are checked beside `cat FILES > /dev/null`: `python benchmarks/checkpoints.py [GIGABYTES] [FOLDER]`.

Layout by layout, each round reads the same files twice, by cat and by us, one after the other, in turns; once from the disk (the files are
dropped from the page cache before, posix_fadvise(2)) and once from memory. CPU time a GB stands beside each rate: on a busy machine it is
the steadier measure. The bounds that people know, SHA-256 and torch.load, are measured on one file. The files are removed afterwards.
"""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed.checkpoint as dcp

from rankpatrol.checkpoints.ledger import Ledger
from rankpatrol.checkpoints.set_verifier import SetVerifier
from rankpatrol.checkpoints.verifier import Closeness, Verifier

ROUNDS = 3
SHARDS = 4
CORES = len(os.sched_getaffinity(0))


def state(gigabytes: float) -> dict[str, torch.Tensor]:
    return {f"layer.{n}": torch.rand(int(gigabytes * 1e9 / 4 / 32)) for n in range(32)}


def torch_files(folder: Path, gigabytes: float) -> None:
    """As four ranks write them."""
    for rank in range(SHARDS):
        torch.save(state(gigabytes / SHARDS), folder / f"model_world_size_{SHARDS}_rank_{rank}.pt")


def dcp_set(folder: Path, gigabytes: float) -> None:
    """Shards of chunks, each a torch file of its own, and their .metadata."""
    with warnings.catch_warnings(action="ignore"):  # that it saves in one process
        writer = dcp.FileSystemWriter(folder, single_file_per_rank=False, thread_count=SHARDS)
        dcp.save(state(gigabytes), storage_writer=writer, no_dist=True)


def safetensors(folder: Path, gigabytes: float) -> None:
    """Without checksums: what is read is the first look, which later ones are compared with."""
    of_file = {}
    for rank in range(SHARDS):
        tensors = {f"{rank}.{name}": tensor for name, tensor in state(gigabytes / SHARDS).items()}
        header, at = {}, 0
        for name, tensor in tensors.items():
            header[name] = {"dtype": "F32", "shape": [tensor.numel()], "data_offsets": [at, at + tensor.nbytes]}
            at += tensor.nbytes
        head = json.dumps(header).encode()
        name = f"model-{rank + 1:05}-of-{SHARDS:05}.safetensors"
        of_file |= dict.fromkeys(tensors, name)
        with (folder / name).open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for tensor in tensors.values():
                file.write(tensor.numpy())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": of_file}))


def drop(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def seconds(work: Callable[[], object]) -> float:
    return times(work)[0]


def times(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time, of programs that it started too."""
    cpu, began = _cpu_s(), time.perf_counter()
    work()
    return time.perf_counter() - began, _cpu_s() - cpu


def _cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def side_by_side(folder: Path, check: Callable[[], object]) -> None:
    files = sorted(folder.iterdir())
    size = sum(path.stat().st_size for path in files)

    def cat() -> None:
        with Path("/dev/null").open("wb") as null:
            subprocess.run(["cat", *files], stdout=null, check=True)

    for where, before in (("from the disk", drop), ("from memory", lambda _: cat())):
        took: dict[str, list[tuple[float, float]]] = {"cat": [], "check": []}
        for turn in range(ROUNDS):
            pair = [("cat", cat), ("check", check)]
            for what, work in pair if turn % 2 == 0 else reversed(pair):
                before(folder)
                took[what].append(times(work))
        wall = {what: median(one[0] for one in each) for what, each in took.items()}
        cpu = {what: median(one[1] for one in each) for what, each in took.items()}
        rates = "   ".join(f"{what} {size / wall[what] / 1e9:5.2f} GB/s, {cpu[what] / size * 1e12:4.0f} ms of CPU a GB" for what in took)
        print(f"  {where:14} {rates}   {wall['cat'] / wall['check']:5.0%} of cat", flush=True)


def beside_what_people_know(path: Path) -> None:
    """From the page cache, since the disk is the same for each."""
    size = path.stat().st_size

    def sha256() -> None:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")

    def load() -> None:
        torch.load(path)

    for what, work in (("check", lambda: Verifier().verify(path)), ("SHA-256", sha256), ("torch.load", load)):
        wall, cpu = min(times(work) for _ in range(ROUNDS))
        print(f"  one file, {what:10} {size / wall / 1e9:6.2f} GB/s, {cpu / size * 1e12:4.0f} ms of CPU a GB", flush=True)


def main() -> None:
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    above = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.gettempdir())
    if shutil.disk_usage(above).free < 2 * gigabytes * 1e9:
        sys.exit(f"there is no room for {gigabytes} GB in {above}")
    print(f"{gigabytes:g} GB in about {SHARDS} files, {CORES} cores, {ROUNDS} rounds, medians")
    for write in (torch_files, dcp_set, safetensors):
        with tempfile.TemporaryDirectory(dir=above) as name:
            folder = Path(name) / "step_1"
            folder.mkdir()
            write(folder, gigabytes)
            print(write.__name__)
            measure(folder)


def measure(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    ledger = folder.parent / "ledger.json"  # never written: it only has first looks taken

    def check() -> None:
        assert SetVerifier(Verifier(ledger=Ledger(ledger)), at_once=min(4, CORES)).verify(folder).verdict == "ok"

    def structure() -> None:
        assert SetVerifier(Verifier(closeness=Closeness(content=False))).verify(folder).verdict == "ok"

    side_by_side(folder, check)
    drop(folder)
    cold = seconds(structure)
    warm = min(seconds(structure) for _ in range(ROUNDS))
    print(f"  structure alone {cold / size * 1e12:.1f} ms a GB from the disk, {warm / size * 1e12:.1f} from memory")
    known = Verifier(ledger=Ledger(ledger))
    SetVerifier(known).verify(folder)
    print(f"  a second look   {min(seconds(lambda: SetVerifier(known).verify(folder)) for _ in range(ROUNDS)) * 1e3:.1f} ms in all")
    first = min(folder.iterdir())
    if first.suffix == ".pt":
        beside_what_people_know(first)


if __name__ == "__main__":
    main()
