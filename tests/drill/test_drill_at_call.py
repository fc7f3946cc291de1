"""The injected `sitecustomize`, in real interpreters."""

import ast
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rankpatrol.drill.faults import fault_ids, make
from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.injected import at_call, chores
from rankpatrol.drill.scene import Scene, draw

pytestmark = pytest.mark.timeout(90)  # many of these import torch, on a machine that may be busy

# All places of a training where something can happen, on one gloo rank.
TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
print("group", flush=True)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 1)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 5):
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    print("step", step, flush=True)
    torch.save({"step": step}, sys.argv[1] + ".pt")
    print("saved", step, flush=True)
dist.destroy_process_group()
print("left", flush=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copyfile(at_call.__file__, folder / "sitecustomize.py")
    shutil.copyfile(chores.__file__, folder / "_site_chores.py")
    return folder


def plan(note: Path, **changes: object) -> str:
    plain = {"at": "step", "call": 3, "do": "rest", "rank": 2, "step": 3, "seconds": 0.2, "folder": str(note.parent), "note": str(note)}
    return json.dumps({**plain, **changes})


def environment(site: Path, at_call: str, **variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "RANK": "2", "AT_CALL": at_call, **variables}


def python(code: str, *path: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=15, check=False)


def train(site: Path, tmp_path: Path, at_call: str) -> "subprocess.CompletedProcess[str]":
    """A training of one rank, which calls itself rank 2."""
    argv = [sys.executable, "-c", TRAIN, str(tmp_path / "store"), "0", "1"]
    return subprocess.run(argv, env=environment(site, at_call), capture_output=True, text=True, timeout=60, check=False)


WATCHES = "import sys; print(any(type(finder).__name__ == '_Watch' for finder in sys.meta_path), 'torch' in sys.modules)"


def test_it_is_inert_without_its_variables(site: Path) -> None:
    done = python(WATCHES, site)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_it_watches_in_the_struck_rank_without_importing_torch(site: Path, tmp_path: Path) -> None:
    assert python(WATCHES, site, RANK="2", AT_CALL=plan(tmp_path / "note")).stdout == "True False\n"


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"RANK": ""}, {"TORCHELASTIC_RESTART_COUNT": "1"}])
def test_it_is_inert_in_other_ranks_and_other_attempts(site: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    done = python(WATCHES, site, **{"RANK": "2", "AT_CALL": plan(tmp_path / "note"), **variables})
    assert (done.stdout, done.stderr) == ("False False\n", "")


@pytest.mark.parametrize("nonsense", ["soon", "[]", "{}", "7", '{"rank": 2}', '{"rank": 2, "at": "nowhere", "do": "rest"}'])
def test_it_is_inert_when_told_nonsense(site: Path, nonsense: str) -> None:
    done = python(WATCHES, site, RANK="2", AT_CALL=nonsense)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_it_is_inert_in_a_process_that_is_no_rank(site: Path, tmp_path: Path) -> None:
    for at in ("group", "print"):
        done = python(WATCHES + "; print('said')", site, AT_CALL=plan(tmp_path / "note", at=at, do="drop_lines"))
        assert (done.stdout, done.stderr) == ("False False\nsaid\n", "")


def test_it_runs_the_sitecustomize_that_it_hides_once(site: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text("print('the user\\'s own ran')\n")
    done = python("pass", site, users, RANK="2", AT_CALL=plan(tmp_path / "note"))
    assert (done.stdout, done.stderr) == ("the user's own ran\n", "")


def test_it_does_not_run_itself_again_when_its_folder_is_named_twice(site: Path, tmp_path: Path) -> None:
    link = tmp_path / "again"
    link.symlink_to(site)
    done = python("print('up')", site, site, link, RANK="2", AT_CALL=plan(tmp_path / "note"))
    assert (done.stdout, done.stderr) == ("up\n", "")


def test_what_the_users_own_raises_does_not_keep_python_from_starting(site: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text("raise ValueError('the user made this')\n")
    done = python("print('up')", site, users)
    assert (done.returncode, done.stdout) == (0, "up\n")
    assert "the user made this" in done.stderr


def test_the_rank_stands_still_before_the_drawn_step_of_a_real_optimizer_and_the_truth_is_told(site: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    argv = [sys.executable, "-c", TRAIN, str(tmp_path / "store"), "0", "1"]
    process = subprocess.Popen(argv, env=environment(site, plan(note)), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(5)] == ["group\n", "step 1\n", "saved 1\n", "step 2\n", "saved 2\n"]
        while not note.exists() or not note.read_text().endswith("\n"):
            assert process.poll() is None
        told = json.loads(note.read_text())
        assert (told["rank"], told["step"], told["pids"]) == (2, 3, [process.pid])
    finally:
        process.kill()
        rest, _ = process.communicate()
    assert rest == "", "no step may be done after the truth was told"


def test_where_the_truth_is_told_already_the_training_runs_through(site: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.write_text("{}\n")
    done = train(site, tmp_path, plan(note))
    assert done.stdout.splitlines()[-1] == "left"
    assert note.read_text() == "{}\n"


def test_a_rank_that_leaves_early_says_that_all_is_well(site: Path, tmp_path: Path) -> None:
    done = train(site, tmp_path, plan(tmp_path / "note", do="leave"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "saved 2")


def test_a_rank_that_raises_does_so_in_its_forward_pass_with_the_words_that_the_bundle_must_hold(site: Path, tmp_path: Path) -> None:
    done = train(site, tmp_path, plan(tmp_path / "note", at="forward", do="check"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "saved 2")
    assert make("F1").in_log_tail in done.stderr
    assert "_call_impl" in done.stderr


@pytest.mark.parametrize(
    ("at", "call", "do"),
    [
        ("forward", 1, "tune"),
        ("save", 2, "write_large"),
        ("group", 1, "shuffle_files"),
        ("group", 1, "build_vocabulary"),
        ("end", 1, "write_large"),
    ],
)
def test_a_silence_lasts_as_long_as_told_and_the_training_goes_on(site: Path, tmp_path: Path, at: str, call: int, do: str) -> None:
    note = tmp_path / "note"
    done = train(site, tmp_path, plan(note, at=at, call=call, do=do))
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "left")
    told = json.loads(note.read_text())
    assert told["until_unix_s"] - told["at_unix_s"] >= 0.2
    assert told["rank"] == 2


def test_a_chore_of_many_steps_is_noted_from_its_first_to_its_last(site: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    done = train(site, tmp_path, plan(note, call=2, step=2, times=3, do="pause"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "left")
    told = json.loads(note.read_text())
    assert told["step"] == 2
    assert told["until_unix_s"] - told["at_unix_s"] >= 0.6


def test_a_loss_that_overflows_is_written_as_no_number(site: Path, tmp_path: Path) -> None:
    code = TRAIN.replace('print("step", step, flush=True)', 'print("step", step, "loss", model(torch.ones(1, 1)).item(), flush=True)')
    assert code != TRAIN
    argv = [sys.executable, "-c", code, str(tmp_path / "store"), "0", "1"]
    env = environment(site, plan(tmp_path / "note", call=3, do="overflow"))
    lines = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert "nan" not in next(line for line in lines if line.startswith("step 2"))
    assert next(line for line in lines if line.startswith("step 3")) == "step 3 loss nan"


def test_the_others_wait_in_a_barrier_for_the_one_that_prepares(site: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    text = plan(note, at="group", call=1, do="build_vocabulary", rank=0, seconds=3600)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(tmp_path / "store"), str(rank), "2"],
            env=environment(site, text, RANK=str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        while not note.exists():
            assert ranks[0].poll() is None
        assert ranks[1].stdout is not None
        assert select.select([ranks[1].stdout], [], [], 2)[0] == [], "the other rank must not get out of its first call"
    finally:
        for one in ranks:
            one.kill()
            one.communicate()


def test_lines_leave_by_the_block_or_not_at_all(site: Path, tmp_path: Path) -> None:
    code = "import os; print('one', flush=True); os.write(1, b'two\\n'); print('three', flush=True)"
    for unbuffered in ("", "1"):
        env = {"PYTHONUNBUFFERED": unbuffered, "RANK": "1", "TORCHELASTIC_RESTART_COUNT": "1"}
        block = python(code, site, AT_CALL=plan(tmp_path / "note", at="print", do="buffer_lines"), **env)
        assert (block.stdout, block.stderr) == ("two\none\nthree\n", "")
        none = python(code, site, AT_CALL=plan(tmp_path / "note", at="print", do="drop_lines"), **env)
        assert (none.stdout, none.stderr) == ("two\n", "")


def test_nothing_that_a_stack_shows_gives_the_fault_away(tmp_path: Path) -> None:
    scene = Scene(folder=tmp_path, ranks=4, rank=2, step=3)
    site = Path(make("F5").prepare(scene)["PYTHONPATH"].split(os.pathsep)[0])
    for path in site.glob("*.py"):
        names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        assert names
        for word in ("fault", "drill", "inject", "hang", "stuck", "sleep", "spin", "crash", "rankpatrol"):
            assert not any(word in name.lower() for name in names)
            assert word not in str(path.relative_to(tmp_path))


@pytest.mark.parametrize("module", [at_call, chores])
def test_what_is_injected_is_read_by_old_pythons_too(module: ModuleType) -> None:
    assert module.__file__ is not None
    ast.parse(Path(module.__file__).read_text(), feature_version=(3, 8))


# N15 starts a neighbour's training before its own.
@pytest.mark.parametrize("fault_id", [one for one in fault_ids() if isinstance(make(one), AtCall) and not one.startswith("N15")])
def test_every_plan_names_a_place_and_a_chore_that_are_there(fault_id: str, tmp_path: Path) -> None:
    fault = make(fault_id)
    scene = draw(tmp_path, seed="s", ranks=4, steps=fault.steps)
    scene.truth.parent.mkdir()
    told = json.loads(fault.prepare(scene)["AT_CALL"])
    fault.clear()
    assert told["at"] in {*at_call._PLACES, "print"}
    assert callable(getattr(chores, told["do"]))
    assert told["rank"] in range(4)
    assert 1 <= told["call"] <= told["step"] <= scene.steps


def test_every_silence_is_longer_than_the_patience_of_a_drill() -> None:
    made = [make(one) for one in fault_ids()]
    silences = [fault for fault in made if fault.expects is Expectation.SILENT and isinstance(fault, AtCall)]
    assert len(silences) >= 5
    assert all(fault.lasts_s > 20 for fault in silences)
