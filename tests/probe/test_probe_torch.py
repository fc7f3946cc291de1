"""The probe in real torch ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from probe_subjects import plain_environment, ranked

from rankpatrol.collect.flight import fetch_recording, fetch_recording_with_lines
from rankpatrol.collect.marks import read_marks
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import Collective, FlightRecording, Marks, ProcessGroup
from rankpatrol.drill.injected import at_call, chores
from rankpatrol.launch.parent import launch_environment
from rankpatrol.launch.rundir import JobSpec, RankPlace, RunDir
from rankpatrol.system.process import boot_id

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(90)]
TRAINING = Path(__file__).with_name("training.py")
RANKS = (0, 1)


class Training(Record, frozen=True):
    """Two ranks under torchrun and their shims."""

    process: "subprocess.Popen[str]"
    run_dir: RunDir
    lines: tuple[int, ...]

    def arrives(self, point: str, *, ranks: tuple[int, ...] = RANKS) -> None:
        assert self.process.stdout is not None
        said = {self.process.stdout.readline().strip() for _ in ranks}
        assert said == {f"{point} {rank}" for rank in ranks}

    def go_on(self, *, ranks: tuple[int, ...] = RANKS) -> None:
        for rank in ranks:
            os.write(self.lines[rank], b"\n")

    def place(self, rank: int) -> RankPlace:
        return next(place for place in self.run_dir.places() if place.rank == rank)

    def marks(self, rank: int) -> Marks:
        place = self.place(rank)
        assert place.marks_fd is not None
        found = read_marks(ProcessId(boot_id(), place.shim_pid, place.shim_start_ticks), place.marks_fd)
        assert isinstance(found, Marks), found
        return found

    def phases(self) -> set[str]:
        return {self.marks(rank).phase for rank in RANKS}

    def steps(self) -> set[int]:
        return {self.marks(rank).steps for rank in RANKS}

    def recording(self, rank: int) -> FlightRecording | Missing:
        path = self.place(rank).probe_socket
        assert path is not None
        return fetch_recording(path)

    def recording_with_lines(self, rank: int) -> FlightRecording | Missing:
        path = self.place(rank).probe_socket
        assert path is not None
        return fetch_recording_with_lines(path, 40.0)

    def last(self, rank: int) -> Collective:
        found = self.recording(rank)
        assert isinstance(found, FlightRecording), found
        return found.entries[-1]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    run_dir = RunDir.create()
    run_dir.write(
        "job.json",
        JobSpec(
            job="job", job_dir=str(tmp_path), command=(), policy="observe", patience_s=180, checkpoints=None, started_unix_s=0.0, probe=True
        ),
    )
    for rank in RANKS:
        os.mkfifo(tmp_path / f"go.{rank}")
    lines = tuple(os.open(tmp_path / f"go.{rank}", os.O_RDWR) for rank in RANKS)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TRAINING), str(tmp_path)]
    env = {**os.environ, **launch_environment(run_dir, recover=False, max_restarts=0), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Training(process, run_dir, lines)
        finally:
            process.terminate()
            process.wait(40)
            for line in lines:
                os.close(line)
            run_dir.remove()


def test_a_training_is_marked_from_its_start_to_its_end_and_tells_its_collectives_while_it_is_stuck(training: Training) -> None:
    training.arrives("start")
    assert (training.phases(), training.steps(), training.marks(0).groups) == ({"initialisation"}, {0}, ())
    assert isinstance(training.recording(0), Missing)
    training.go_on()

    training.arrives("joined")
    assert training.phases() == {"first_step"}
    world, both = training.marks(0).groups
    assert (world.backend, world.ranks, world.timeout_s) == ("gloo", (0, 1), 60.0)
    assert (both.backend, both.ranks, both.timeout_s) == ("gloo", (0, 1), 33.0)
    assert training.marks(1).groups == (world, ProcessGroup(name=_second(training), backend="gloo", ranks=(1,), timeout_s=44.0), both)
    training.go_on()

    training.arrives("stepped")
    assert (training.phases(), training.steps()) == ({"train_step"}, {3})
    stepped_at_s = training.marks(0).last_step_at_mono_s
    assert stepped_at_s is not None
    assert stepped_at_s >= training.marks(0).phase_since_mono_s
    training.go_on()

    training.arrives("loaded")
    assert training.steps() == {3}, "what loader processes do is not marked"
    assert training.marks(0).last_step_at_mono_s == stepped_at_s
    training.go_on()

    training.arrives("checkpoint")
    assert training.phases() == {"checkpoint"}
    training.go_on()
    training.arrives("evaluates")
    assert training.phases() == {"evaluation"}
    training.go_on()

    training.arrives("waits", ranks=(1,))
    while not _is_open(training.last(0), "all_reduce"):
        time.sleep(0.01)
    assert (training.phases(), training.steps()) == ({"train_step"}, {4})
    assert not _is_open(training.last(1), "all_reduce")
    assert training.last(0).group == both.name, "marks and recordings call a group the same"
    lined = training.recording_with_lines(0)
    assert isinstance(lined, FlightRecording), lined
    assert any(frame.file.endswith("training.py") for frame in lined.entries[-1].frames)
    recording = training.recording(1)
    assert isinstance(recording, FlightRecording)
    assert {entry.group for entry in recording.entries} <= {group.name for group in training.marks(1).groups}
    training.go_on(ranks=(1,))

    training.arrives("left")
    assert training.phases() == {"teardown"}
    assert training.marks(0).groups == ()
    training.go_on()
    assert training.process.wait(30) == 0


def _second(training: Training) -> str:
    return training.marks(1).groups[1].name


def _is_open(entry: Collective, operation: str) -> bool:
    return operation in entry.operation and not entry.retired


COMPILED = """
import sys, torch
torch.set_num_threads(1)
def at(point):
    print(point, flush=True)
    sys.stdin.readline()
def backend(graph, inputs):
    at("compiles")
    return graph.forward
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend=backend, fullgraph=True)
def train(step):
    compiled(torch.ones(1, 2)).sum().backward()
    step()
train(optimizer.step)
train(optimizer.step)
at("trained")
train(torch.compile(optimizer.step, backend=backend))
at("trained")
"""


def test_a_compilation_is_a_phase_and_steps_that_are_compiled_themselves_are_not_said_to_stand_still(tmp_path: Path) -> None:
    with ranked(["-W", "ignore", "-c", COMPILED], tmp_path) as rank:
        assert rank.says() == "compiles"
        assert (rank.seen().phase, rank.seen().steps) == ("compile", 0)
        rank.go_on()
        assert rank.says() == "trained"
        assert (rank.seen().phase, rank.seen().steps) == ("train_step", 2)
        rank.go_on()
        assert rank.says() == "compiles"
        rank.go_on()
        assert rank.says() == "trained"
        found = rank.marks()
        assert isinstance(found, Missing)
        assert "cannot be counted" in found.reason
        rank.go_on()
        rank.end()
        assert rank.process.returncode == 0


ONE_RANK = """
import sys, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_probe_and_a_sitecustomize_that_follows_the_same_modules_get_on(tmp_path: Path) -> None:
    site, note = tmp_path / "lib", tmp_path / "note"
    site.mkdir()
    shutil.copyfile(at_call.__file__, site / "sitecustomize.py")
    shutil.copyfile(chores.__file__, site / "_site_chores.py")
    plan = {"at": "forward", "call": 3, "do": "tune", "rank": 2, "step": 3, "seconds": 0.1, "folder": str(tmp_path), "note": str(note)}
    env = plain_environment(PYTHONPATH=str(site), RANK="2", AT_CALL=json.dumps(plan))
    with ranked(["-c", ONE_RANK, str(tmp_path / "store")], tmp_path, env=env) as rank:
        assert rank.says() == "done"
        assert (rank.seen().steps, rank.seen().phase) == (4, "train_step")
        assert json.loads(note.read_text())["step"] == 3
        rank.go_on()
        rank.end()
        assert rank.process.returncode == 0, "torch's server does not disturb an end without destroy_process_group"
