"""Whole saves are accepted whatever is in them; saves that were cut by SIGKILL never are; and nothing that is read is ever run."""

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shelves import DATA, SHELVES

from rankpatrol.checkpoints.newest import judge, list_checkpoints, newest_good
from rankpatrol.checkpoints.report import CheckpointVerdict
from rankpatrol.checkpoints.set_verifier import SetVerifier
from rankpatrol.checkpoints.verifier import Closeness, Verifier

pytestmark = pytest.mark.timeout(120)  # some start torch, others are hundreds of looks
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64", "float8_e4m3fn")
SAFE_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}


def some_state(dice: random.Random, dtypes: tuple[str, ...] = DTYPES) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = {}
    for number in range(dice.randrange(6)):
        shape = [dice.randrange(5) for _ in range(dice.randrange(4))]
        tensor = torch.ones(shape).to(getattr(torch, dice.choice(dtypes)))
        state[f"layer.{number}.weight"] = tensor
        if dice.random() < 0.3:
            state[f"layer.{number}.tied"] = tensor
    return state


def as_safetensors(state: dict[str, Any]) -> bytes:
    """The library's own form (compared with what it wrote: tests/data/checkpoints/weights)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in state.items():
        raw = tensor.numpy().tobytes()
        dtype = SAFE_NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def test_a_hundred_whole_checkpoints_of_all_kinds_are_accepted(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    dice = random.Random(7)
    accepted = 0
    for number in range(20):
        path = tmp_path / f"step_{number}.pt"
        torch.save({**some_state(dice), "step": number}, path, pickle_protocol=dice.randrange(2, 6))
        assert Verifier().verify(path).content_verified
        old = tmp_path / f"old_{number}.pth"
        torch.save(some_state(dice, DTYPES[:-1]), old, _use_new_zipfile_serialization=False)
        assert (Verifier().verify(old).layout, Verifier().verify(old).verdict) == ("torch_legacy", "ok")
        weights = tmp_path / f"weights_{number}.safetensors"
        weights.write_bytes(as_safetensors(some_state(dice, tuple(SAFE_NAMES))))
        assert Verifier().verify(weights).verdict == "ok", Verifier().verify(weights)
        accepted += 3
    for number in range(20):
        folder = tmp_path / "dcp" / f"step_{number}"
        with warnings.catch_warnings(action="ignore"):
            dcp.save({"model": some_state(dice, DTYPES[:-1]), "more": {"lr": 0.1, "step": number}}, checkpoint_id=folder, no_dist=True)
        report = SetVerifier(Verifier()).verify(folder)
        assert report.verdict == "ok", report
        accepted += 1
    for shelf in SHELVES:
        listing = list_checkpoints(DATA / shelf.name)
        for position, candidate in enumerate(listing.candidates):
            (report,) = judge(candidate, Verifier(), older=listing.candidates[position + 1 :])
            assert report.verdict == "ok", report
            accepted += 1
    for path in (DATA / "lightning").iterdir():
        assert Verifier().verify(path).verdict == "ok"
        accepted += 1
    assert accepted >= 100


def test_our_safetensors_are_the_librarys_own(tmp_path: Path) -> None:
    """Each tensor that the library wrote is laid out as ours would be: the same header fields, order and padding."""
    path = DATA / "accelerate" / "checkpoint_4" / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    assert {tuple(sorted(facts)) for facts in header.values()} == {("data_offsets", "dtype", "shape")}
    assert max(facts["data_offsets"][1] for facts in header.values()) == len(data) - 8 - length


SAVING = """
import sys, warnings
import torch, torch.distributed.checkpoint as dcp
warnings.simplefilter("ignore")
kind, target = sys.argv[1:]
state = {f"layer.{n}": torch.rand(1 << 19) for n in range(40)}
print("ready", flush=True)
if kind == "zip":
    torch.save(state, target)
elif kind == "old":
    torch.save(state, target, _use_new_zipfile_serialization=False)
elif kind == "dcp":
    dcp.save(state, checkpoint_id=target, no_dist=True)
print("saved", flush=True)
"""


_TRIES = 5


def _killed_in_its_save(kind: str, target: Path, at_bytes: float) -> bool:
    """Kill a save once so much of it is on the disk; False where it was done before."""
    words = [sys.executable, "-c", SAVING, kind, str(target)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as saving:
        assert saving.stdout is not None
        assert saving.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while _bytes_of(target) < at_bytes and time.monotonic() < deadline and saving.poll() is None:
            os.sched_yield()
        saving.send_signal(signal.SIGKILL)
        return "saved" not in saving.stdout.read()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["zip", "old", "dcp"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
def test_a_save_that_was_killed_is_never_accepted(tmp_path: Path, kind: str, share: float) -> None:
    target = tmp_path / ("step_7" if kind == "dcp" else "step_7.pt")
    # A save may be done before the signal comes, where others take the CPU: then once more.
    for _ in range(_TRIES):
        if _killed_in_its_save(kind, target, share * 40 * (4 << 19)):
            break
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    else:
        pytest.skip(f"each of {_TRIES} saves was done before the signal came")
    selection = newest_good(tmp_path, Verifier())
    if selection.newest_good is not None:
        # Killed between the last byte and the word: then it must be whole for its own reader, too.
        assert Verifier().verify(target).verdict == "ok" if kind != "dcp" else (target / ".metadata").exists()
        return
    assert selection.rejected == () or selection.rejected[0].verdict is CheckpointVerdict.INCOMPLETE


def _bytes_of(target: Path) -> int:
    try:
        files = list(target.iterdir()) if target.is_dir() else [target]
        return sum(path.stat().st_size for path in files)
    except OSError:
        return 0


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_that_would_run_a_command_is_only_read(tmp_path: Path) -> None:
    import torch

    marker = tmp_path / "ran"
    for protocol in range(2, 6):
        folder = tmp_path / f"step_{protocol}"
        folder.mkdir()
        loaded = {"iteration": protocol, "global_step": protocol, "pytorch-lightning_version": "2.6", "bomb": Bomb(marker)}
        (folder / ".metadata").write_bytes(pickle.dumps(loaded, protocol))
        (folder / "__0_0.distcp").write_bytes(b"x")
        (folder / "random_states_0.pkl").write_bytes(pickle.dumps(loaded, protocol))
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "common.pt", "meta.pt", "a.ckpt"):
            torch.save(loaded, folder / name, pickle_protocol=protocol)
        torch.save(loaded, folder / "old.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        SetVerifier(Verifier(closeness=Closeness(numbers=True))).verify(folder)
        for path in folder.iterdir():
            Verifier(closeness=Closeness(numbers=True)).verify(path)
    assert not marker.exists()
    pickle.loads((tmp_path / "step_5" / ".metadata").read_bytes())
    assert marker.exists(), "the bomb is no bomb, so this test showed nothing"


FILES = sorted(path for path in DATA.rglob("*") if path.is_file() and path.suffix not in {".py", ".md", ".txt"} and path.name != "latest")


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mutation_of_any_file_of_a_set_gets_a_verdict(tmp_path: Path, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(FILES))
    spoiled = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(spoiled)))
        spoiled[start : start + data.draw(st.integers(0, 12))] = data.draw(st.binary(max_size=12))
    folder = tmp_path / source.parent.name
    folder.mkdir(exist_ok=True)
    for beside in source.parent.iterdir():
        if beside.is_file() and not (folder / beside.name).exists():
            (folder / beside.name).write_bytes(beside.read_bytes())
    (folder / source.name).write_bytes(spoiled)
    report = SetVerifier(Verifier()).verify(folder)
    assert report.verdict in CheckpointVerdict
    assert report.sentence.isprintable()
    (folder / source.name).write_bytes(source.read_bytes())


def test_a_nan_an_infinity_and_all_zeros_are_found_when_asked_for(tmp_path: Path) -> None:
    import torch

    pytest.importorskip("numpy")
    sound = {"a": torch.ones(100, dtype=torch.bfloat16), "b": torch.full((50,), 3.4e38), "c": torch.zeros(9)}
    scan = Verifier(closeness=Closeness(numbers=True))

    def judged(state: dict[str, Any], name: str) -> Any:
        torch.save(state, tmp_path / f"{name}.pt")
        return scan.verify(tmp_path / f"{name}.pt")

    assert judged(sound, "sound").verdict == "ok"
    for number, (odd, dtype) in enumerate([("nan", "bfloat16"), ("inf", "float16"), ("-inf", "float64"), ("nan", "float32")]):
        tensor = torch.ones(100, dtype=getattr(torch, dtype))
        tensor[77] = float(odd)
        report = judged({**sound, "d": tensor}, f"odd_{number}")
        assert (report.verdict, report.key) == ("corrupt", "data/3")
        assert "NaN or an infinity" in report.sentence
    assert judged({"a": torch.zeros(5), "b": torch.zeros(7)}, "zeros").verdict == "unknown"
    path = tmp_path / "w.safetensors"
    path.write_bytes(as_safetensors({"a": torch.ones(3), "b": torch.tensor([1.0, float("nan")])}))
    assert (scan.verify(path).verdict, scan.verify(path).key) == ("corrupt", "b")
