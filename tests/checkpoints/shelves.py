"""Real checkpoints of every layout, and the ways to damage them. What each damage is must be told with the right file."""

import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "checkpoints"


@dataclass(frozen=True)
class Shelf:
    """Two steps of one layout. `needed`: files that must be whole, and there unless `spare`; `mixed`: those that tell their step."""

    name: str
    newer: str
    older: str
    needed: tuple[str, ...]
    mixed: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    pointer: str = ""
    stale: str = ""


RANKS = tuple(f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt" for rank in (0, 1) for kind in ("model", "optim"))
BF16 = tuple(f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))
ZERO2 = tuple(f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))
SHELVES = (
    Shelf(
        "hf_trainer",
        "checkpoint-4",
        "checkpoint-2",
        (
            "model.safetensors",
            "optimizer.pt",
            "scheduler.pt",
            "rng_state_0.pth",
            "rng_state_1.pth",
            "trainer_state.json",
            "training_args.bin",
        ),
        ("trainer_state.json",),
        ("training_args.bin",),
    ),
    Shelf(
        "hf_trainer_deepspeed",
        "checkpoint-4",
        "checkpoint-2",
        (
            "rng_state_0.pth",
            "rng_state_1.pth",
            "trainer_state.json",
            "global_step4/mp_rank_00_model_states.pt",
            *(f"global_step4/{name}" for name in ZERO2),
        ),
        ("trainer_state.json",),
    ),
    Shelf(
        "deepspeed_zero1",
        "global_step4",
        "global_step2",
        ("mp_rank_00_model_states.pt", *BF16),
        ("mp_rank_00_model_states.pt", *BF16),
        pointer="latest",
        stale="global_step2",
    ),
    Shelf("deepspeed_zero3", "global_step4", "global_step2", RANKS, RANKS, pointer="latest", stale="global_step2"),
    Shelf(
        "megatron",
        "iter_0000004",
        "iter_0000002",
        ("mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"),
        ("mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"),
        pointer="latest_checkpointed_iteration.txt",
        stale="2",
    ),
    Shelf("dcp_fsdp", "step_4", "step_2", (".metadata", "__0_0.distcp", "__1_0.distcp")),
    Shelf(
        "fsdp_ranks",
        "step_4",
        "step_2",
        tuple(f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)),
        tuple(f"optim_world_size_2_rank_{rank}.pt" for rank in (0, 1)),
    ),
    Shelf(
        "weights",
        "step_4",
        "step_2",
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
    ),
    Shelf("accelerate", "checkpoint_4", "checkpoint_2", ("model.safetensors", "optimizer.bin", "random_states_0.pkl")),
)


@dataclass(frozen=True)
class Damage:
    """One thing done to one file, which must be named."""

    what: str
    victim: Path
    do: Callable[[Path], object]
    keeps_time: bool = False


class Restored:
    """Files as they were, with their times, after each damage."""

    def __init__(self, folder: Path) -> None:
        self.files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}

    def damaged(self, damage: Damage) -> None:
        damage.do(damage.victim)
        if damage.victim.exists():
            _, then_ns = self.files[damage.victim]
            os.utime(damage.victim, ns=(then_ns, then_ns + (0 if damage.keeps_time else 10**9)))

    def again(self, victim: Path) -> None:
        data, then_ns = self.files[victim]
        if victim.exists():
            with victim.open("r+b") as out:
                out.write(data)
                out.truncate(len(data))
        else:
            victim.write_bytes(data)
        os.utime(victim, ns=(then_ns, then_ns))


def put(shelf: Shelf, folder: Path) -> Path:
    """A copy whose last writes are long past."""
    target = folder / shelf.name
    shutil.copytree(DATA / shelf.name, target)
    for path in target.rglob("*"):
        old = 1_790_000_000 + (100 if shelf.newer in path.parts else 0)
        os.utime(path, (old, old))
    return target


def truncations(victim: Path) -> Iterator[Damage]:
    """At twenty places, the first of them byte 0."""
    size = victim.stat().st_size
    for place in range(20):
        length = size * place // 20

        def cut(path: Path, length: int = length) -> None:
            os.truncate(path, length)

        yield Damage(f"cut at byte {length} of {size}", victim, cut)


def flips(victim: Path, count: int) -> Iterator[Damage]:
    """Single bits, in bytes that matter: anywhere in a file without checksums, in the members of a zip file."""
    places = meaningful(victim)
    dice = random.Random(victim.name)
    for _ in range(count):
        at = dice.choice(places)
        bit = 1 << dice.randrange(8)

        def flip(path: Path, at: int = at, bit: int = bit) -> None:
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ bit]))

        yield Damage(f"bit {bit} of byte {at}", victim, flip, keeps_time=True)


def meaningful(path: Path) -> list[int]:
    """The bytes that a reader of the file uses; between a zip file's members there is padding."""
    data = path.read_bytes()
    starts = [0]
    if path.suffix == ".distcp":
        import pickle

        metadata = pickle.loads(path.with_name(".metadata").read_bytes())
        stored = [place for place in metadata.storage_data.values() if place.relative_path == path.name]
        return [at for place in stored for at in _members(data[place.offset : place.offset + place.length], place.offset)]
    return [at for start in starts for at in _members(data, start)] if data.startswith(b"PK") else list(range(len(data)))


def _members(data: bytes, base: int) -> list[int]:
    found: list[int] = []
    with zipfile.ZipFile(BytesIO(data)) as archive:
        for member in archive.infolist():
            header = data[member.header_offset : member.header_offset + 30]
            start = member.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            found += range(base + start, base + start + member.file_size)
    return found
