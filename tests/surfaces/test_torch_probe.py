"""What the probe follows, held against each version: the target is there, or its absence is known and harms nothing."""

import datetime as dt
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch_surfaces import C10D, SURFACES, VERSIONS, at_least, module_of

from rankpatrol.analysis.frames import ROWS
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.doctor import training
from rankpatrol.launch.probe import layout
from rankpatrol.launch.probe.groups import GroupBook
from rankpatrol.launch.probe.hooks import Hooks, step_hook
from rankpatrol.launch.probe.sheet import Sheet

every_version = pytest.mark.parametrize("version", VERSIONS)
# What some versions lack: since when it is there. All else is there in all of them.
SINCE = {
    "torch/_dynamo/callback.py:on_compile_start": "2.3",
    "torch/_dynamo/callback.py:on_compile_end": "2.3",
    "torch/compiler/__init__.py:is_dynamo_compiling": "2.3",
    "torch/distributed/checkpoint/state_dict_saver.py:save": "2.2",
    "torch/distributed/checkpoint/state_dict_saver.py:async_save": "2.3",
    f"{C10D}:split_group": "2.5",
    f"{C10D}:shrink_group": "2.10",
}
NATIVE_SINCE = {"_WorkerServer": "2.4", "_dump_fr_trace": "2.8", "_dump_fr_trace_json": "2.8", "_register_handler": "2.10"}


def hooked(file: str, version: str) -> tuple[Any, Sheet]:
    """A version's module after the probe has seen it imported."""
    sheet = Sheet(memoryview(bytearray(layout.SIZE_BYTES)))
    module = module_of(SURFACES[version], file)
    if file == C10D:
        module._world = WORLD
    Hooks(sheet, "").wanted()[module.__name__](module)
    return module, sheet


WORLD = SimpleNamespace(
    pg_map={"group": ("gloo", None)}, pg_names={"group": "0"}, pg_group_ranks={"group": {0: 0, 1: 1}}, default_pg="group"
)


@every_version
def test_what_the_probe_follows_is_there_from_the_version_on_that_is_known(version: str) -> None:
    everything = set().union(*(surface["signatures"] for surface in SURFACES.values()))
    lacking = everything - set(SURFACES[version]["signatures"])
    assert lacking == {place for place, since in SINCE.items() if not at_least(version, since)}
    assert set(SURFACES[version]["native"]) == {name for name, since in NATIVE_SINCE.items() if at_least(version, since)}


@every_version
def test_groups_are_followed_with_their_time_outs(version: str) -> None:
    module, sheet = hooked(C10D, version)
    assert SURFACES[version]["world_is_one"]
    book = GroupBook(module, sheet)
    made = module._new_process_group_helper(2, 0, [0, 1], "gloo", None, group_name="0", timeout=dt.timedelta(seconds=7))
    arguments = {"group_name": "0", "timeout": dt.timedelta(seconds=7)}
    book.note_timeout(("group",), (2, 0, [0, 1], "gloo", None), arguments)
    assert made is not None
    assert book._timeouts_s == {"0": 7.0}
    module.init_process_group("gloo")
    assert sheet.base == layout.FIRST_STEP
    assert sheet.words[layout.GROUPS_SEQUENCE] == 1
    module.destroy_process_group()
    assert sheet.base == layout.TEARDOWN


@every_version
def test_no_group_is_made_unseen(version: str) -> None:
    module, _ = hooked(C10D, version)
    makers = {name for name in ("new_group", "split_group", "shrink_group") if f"{C10D}:{name}" in SURFACES[version]["signatures"]}
    assert all(hasattr(getattr(module, name), "__wrapped__") for name in makers)
    assert "new_group" in makers


@every_version
@pytest.mark.parametrize("file", ["torch/serialization.py", "torch/distributed/checkpoint/state_dict_saver.py"])
def test_a_save_is_a_checkpoint_phase(version: str, file: str) -> None:
    names = [place.partition(":")[2] for place in SURFACES[version]["signatures"] if place.startswith(file + ":")]
    assert names
    module, sheet = hooked(file, version)
    phases: list[int] = []
    for name in names:
        function = getattr(module, name).__wrapped__
        assert function is not None
        getattr(module, name)(*[None] * _needed(SURFACES[version]["signatures"][f"{file}:{name}"]))
        phases.append(sheet.words[layout.PHASE] % layout.PHASE_CODES)
    assert set(phases) == {layout.INITIALISATION}


def _needed(signature: str) -> int:
    return len([word for word in signature.strip("()").partition("*")[0].split(",") if word.strip() and "=" not in word])


@every_version
def test_compilations_are_marked_or_their_absence_changes_nothing(version: str) -> None:
    sheet = Sheet(memoryview(bytearray(layout.SIZE_BYTES)))
    module = module_of(SURFACES[version], "torch/_dynamo/callback.py")
    began: list[Any] = []
    if hasattr(module, "on_compile_start"):
        module.on_compile_start = began.append
    Hooks(sheet, "").wanted()["torch._dynamo.callback"](module)
    for callback in began:
        callback("whatever this version hands over")
    seen = sheet.words[layout.PHASE] % layout.PHASE_CODES == layout.COMPILE
    assert seen == at_least(version, "2.3")


@every_version
def test_steps_are_counted_and_a_compiler_that_takes_the_hooks_away_is_told(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    surface = SURFACES[version]
    assert surface["signatures"]["torch/optim/optimizer.py:register_optimizer_step_post_hook"] == "(hook)"
    sheet = Sheet(memoryview(bytearray(layout.SIZE_BYTES)))
    torch = module_of(surface, "torch/compiler/__init__.py")
    on_step = step_hook(sheet, SimpleNamespace(compiler=None))  # type: ignore[arg-type]
    on_step(None, (), {})
    assert sheet.words[layout.STEPS] == 1
    assert hasattr(torch, "is_dynamo_compiling") == at_least(version, "2.3")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    eval_frame = module_of(surface, "torch/_dynamo/eval_frame.py")
    Hooks(sheet, "").wanted()["torch._dynamo.eval_frame"](eval_frame)
    eval_frame.TorchPatcher.patch()
    assert bool(sheet.words[layout.FLAGS] & layout.UNCOUNTED) != at_least(version, "2.3")


@every_version
def test_every_collective_of_this_version_means_a_collective(version: str) -> None:
    """A name that is new in torch must be told: a rank that waits in it would be taken for one that works in user code."""
    functions = set(SURFACES[version]["functions"][C10D].split())
    known = {name for row in ROWS if row.file_end == C10D for name in row.functions}
    verbs = (
        "all_reduce",
        "all_gather",
        "all_to_all",
        "reduce",
        "broadcast",
        "gather",
        "scatter",
        "send",
        "recv",
        "isend",
        "irecv",
        "barrier",
    )
    named = {name for name in functions if name.startswith(verbs)}
    assert named <= known
    assert {"_store_based_barrier", "destroy_process_group", "init_process_group", "new_group"} <= functions & known


@every_version
def test_a_wait_for_data_stands_in_functions_that_are_known(version: str) -> None:
    functions = SURFACES[version]["functions"]
    waiting = {
        name for row in ROWS if row.file_end == "torch/utils/data/dataloader.py" and row.kind is WaitKind.DATA for name in row.functions
    }
    assert waiting >= {"_try_get_data", "_get_data"}
    assert {"_try_get_data", "_get_data", "__next__"} <= set(functions["torch/utils/data/dataloader.py"].split())
    assert "_worker_loop" in functions["torch/utils/data/_utils/worker.py"].split()
    assert "fetch" in functions["torch/utils/data/_utils/fetch.py"].split()
    # Until 2.2 backward's own frame was the innermost.
    backward = set(functions["torch/autograd/graph.py"].split()) | set(functions["torch/autograd/__init__.py"].split())
    assert "backward" in backward
    assert ("_engine_run_backward" in backward) == at_least(version, "2.3")


@every_version
def test_the_doctor_tells_what_a_version_lacks(version: str) -> None:
    surface = SURFACES[version]
    there = {
        "register_optimizer_step_post_hook": "torch/optim/optimizer.py:register_optimizer_step_post_hook" in surface["signatures"],
        "_dynamo/callback.py": "torch/_dynamo/callback.py:on_compile_start" in surface["signatures"],
        "_set_thread_name": "pt_data_worker" in surface["thread_names"],
        "_register_handler": "_register_handler" in surface["native"],
    }
    assert {each.name: at_least(version, each.since) for each in training.SURFACES} == there
    has = tuple(name for name, is_there in there.items() if is_there)
    rows = training.judge_torch(training.TorchFacts(version=version, cuda=None, distributed=True, has=has), {})
    assert len([row for row in rows if row.name == "torch-surface"]) == len(there) - len(has)
