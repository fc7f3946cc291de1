"""What the probe decides before it touches anything: room for the server's threads, versions of torch, groups in few words."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.collect.marks import Even, _ranks
from rankpatrol.launch.probe import layout, server
from rankpatrol.launch.probe.groups import compact
from rankpatrol.launch.probe.hooks import Hooks
from rankpatrol.launch.probe.sheet import Sheet
from rankpatrol.launch.probe.wrapping import follow, quietly, wrap


def blank() -> Sheet:
    return Sheet(memoryview(bytearray(layout.SIZE_BYTES)))


@pytest.mark.parametrize(("most", "current", "room"), [("max", "5", float("inf")), ("100", "40", 60), ("", "5", float("inf"))])
def test_the_room_of_a_control_group_is_what_it_says(tmp_path: Path, most: str, current: str, room: float) -> None:
    (tmp_path / "pids.max").write_text(most + "\n")
    (tmp_path / "pids.current").write_text(current + "\n")
    assert server._room_in(str(tmp_path)) == room
    assert server._room_in("/nowhere") == float("inf")


def test_no_server_starts_where_its_threads_might_not_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    torch_c10d = SimpleNamespace(_WorkerServer=lambda path: started.append(path) or SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torch_c10d)
    monkeypatch.setattr(server, "_control_groups", lambda: [str(tmp_path)])
    monkeypatch.setattr(os, "cpu_count", lambda: 192)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    (tmp_path / "pids.current").write_text("100\n")
    for most, serves in (("3000", False), ("4096", True)):  # 8 ranks with 193 threads each, twice, are 3088
        (tmp_path / "pids.max").write_text(most)
        assert server.serve("/a/socket") is serves
    assert started == ["/a/socket"]


def test_the_control_groups_of_this_process_are_found() -> None:
    assert all(folder.startswith("/sys/fs/cgroup") for folder in server._control_groups())


def test_a_torch_without_a_worker_server_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", ModuleType("c10d"))
    assert server.serve("/nowhere/socket") is False


@pytest.mark.parametrize(("version", "flags"), [("2.2.1+cu118", layout.UNCOUNTED), ("2.3.0", 0), ("2.13.0+cpu", 0), ("2.20.0", 0)])
def test_where_the_compiler_takes_the_hooks_away_the_count_is_not_told(monkeypatch: pytest.MonkeyPatch, version: str, flags: int) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    eval_frame = SimpleNamespace(TorchPatcher=type("TorchPatcher", (), {"patch": staticmethod(lambda: None)}))
    sheet = blank()
    Hooks(sheet, "").wanted()["torch._dynamo.eval_frame"](eval_frame)
    assert sheet.words[layout.FLAGS] == 0
    eval_frame.TorchPatcher.patch()
    assert sheet.words[layout.FLAGS] == flags


def test_only_the_whole_model_in_the_midst_of_training_goes_into_evaluation() -> None:
    class Module:
        def eval(self) -> "Module":
            return self

    wrapped = type("DistributedDataParallel", (Module,), {})()
    sheet = blank()
    Hooks(sheet, "").wanted()["torch.nn.modules.module"](SimpleNamespace(Module=Module))
    for phase, model, then in (
        (layout.FIRST_STEP, wrapped, layout.FIRST_STEP),
        (layout.TRAIN_STEP, Module(), layout.TRAIN_STEP),
        (layout.TRAIN_STEP, wrapped, layout.EVALUATION),
    ):
        sheet.begin(phase)
        assert model.eval() is model
        assert sheet.base == then


def test_a_module_that_lacks_what_is_looked_for_is_left_as_it_is() -> None:
    for install in Hooks(blank(), "").wanted().values():
        install(SimpleNamespace())


@given(st.lists(st.integers(0, 4095), unique=True, max_size=64))
def test_ranks_in_few_words_are_the_same_ranks(ranks: list[int]) -> None:
    words = compact(sorted(ranks))
    assert _ranks(Even(**words) if isinstance(words, dict) else words) == tuple(sorted(ranks))


def test_what_fails_in_a_mark_reaches_nobody() -> None:
    def fails(*_: object) -> None:
        raise OSError

    owner = SimpleNamespace(half=lambda number: number / 2)
    follow(owner, "half", quietly(fails))
    wrap(owner, "half", before=quietly(fails), ended=quietly(fails))
    assert owner.half(4) == 2
    with pytest.raises(TypeError):
        owner.half("x")
