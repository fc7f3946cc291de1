"""Whole runs, with a stand-in for the patrol that keeps the contract, or breaks it."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankpatrol.core.records import Missing
from rankpatrol.drill import __main__ as command
from rankpatrol.drill import runner
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults import make
from rankpatrol.drill.runner import Settings, play
from rankpatrol.drill.scene import Scene, draw
from rankpatrol.drill.score import Bars, score

# A loader blocks on the block; a suspect is named, evidence sealed, action told; then the same block is read as a new attempt would.
PATROL = """
import json, os, stat, subprocess, sys, time
from pathlib import Path
job, checkpoints, block, rank, step, last, named = sys.argv[1:]
job, checkpoints, block, step = Path(job), Path(checkpoints), Path(block), int(step)
(job / "attempts" / "0").mkdir(parents=True)
LOADER = "import sys; open('/proc/self/comm', 'w').write('pt_data_worker'); open(sys.argv[1], 'rb').read()"
loader = subprocess.Popen([sys.executable, "-c", LOADER, str(block)], env={**os.environ, "RANK": rank})
with (job / "attempts" / "0" / "rank0.log").open("w") as log:
    for done in range(1, step):
        print(f"step {done}/120 loss 0.1 (0.2 s)", file=log, flush=True)
(checkpoints / "step_000010.pt").touch()
def tell(kind, attempt=0, **more):
    with (job / "events.jsonl").open("a") as events:
        print(json.dumps({"at_unix_s": time.time(), "kind": kind, "attempt": attempt, **more}), file=events)
truth = job.parent / "truth" / "truth.json"
while not truth.exists():
    time.sleep(0.02)
ranks = [int(named)]
tell("alert", incident=1, suspect_ranks=ranks, cause="data_loader_worker_stuck", sentence=f"waits for loader process {loader.pid}")
tell("verdict", incident=1, verdict="hang", culprit_ranks=ranks, cause="data_loader_worker_stuck")
tell("bundle_sealed", incident=1, path="incidents/1", seconds=0.1)
tell("action", incident=1, what="restart", bundle="incidents/1", done=True)
loader.kill()
loader.wait()
tell("attempt_ended", reason="hang")
while not stat.S_ISREG(block.stat().st_mode):
    time.sleep(0.02)
tell("resumed", 1, checkpoint=str(checkpoints / "step_000010.pt"), step=10)
(checkpoints / last).touch()
"""


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    patrol(monkeypatch, name_rank=None)
    monkeypatch.setattr(runner, "_bundle_stands", lambda path: path.name == "1")


def patrol(monkeypatch: pytest.MonkeyPatch, *, name_rank: int | None) -> None:
    def stand_in(scene: Scene, _settings: Settings) -> list[str]:
        named = str(scene.rank if name_rank is None else name_rank)
        words = (scene.job, scene.checkpoints, scene.block(), scene.rank, scene.step, scene.last_checkpoint.name, named)
        return [sys.executable, "-c", PATROL, *map(str, words)]

    monkeypatch.setattr(runner, "patrol_command", stand_in)


def test_a_run_is_followed_healed_and_scored_to_its_end(tmp_path: Path) -> None:
    scene = draw(tmp_path, seed="one", ranks=4)
    seen = play(make("F6b"), scene, Settings(), run_number=0, seed="one")
    one = score(seen, Bars())
    assert one.complaints == ()
    assert (one.rank, one.step, one.resumed_step, one.exit_code) == (scene.rank, scene.step, 10, 0)
    assert one.process_named
    assert one.suspect_s is not None
    assert 0 <= one.suspect_s < 15


def test_a_run_over_its_deadline_is_ended_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "patrol_command", lambda *_: [sys.executable, "-c", "import signal; signal.pause()"])
    seen = play(make("F6b"), draw(tmp_path, seed="one", ranks=4), Settings(deadline_s=1), run_number=0, seed="one")
    assert seen.exit_code == Missing("not at its end after 1 s")
    assert not score(seen, Bars()).passed


def test_passed_runs_are_told_in_a_line_and_cleared_away(tmp_path: Path) -> None:
    done = CliRunner().invoke(command.main, ["f6B", "F6b-open", "--seed", "s", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "passed F6b run 0: rank" in done.output
    assert "passed F6b-open run 0: rank" in done.output
    assert "…" not in done.output, "the scorecard must not be cut in a pipe"
    assert {path.name for path in tmp_path.iterdir()} == {"drill.json", "scorecard.json"}


def test_a_failed_run_is_kept_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patrol(monkeypatch, name_rank=99)
    done = CliRunner().invoke(command.main, ["F6b", "--runs", "2", "--seed", "s", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert done.output.count("FAILED F6b") == 2
    assert "names rank 99, but it is rank" in done.output
    kept = json.loads((tmp_path / "scorecard.json").read_text())
    assert [row["named_rightly"] for row in kept["rows"]] == [0]
    assert all((Path(one["folder"]) / "job" / "events.jsonl").exists() for one in kept["runs"])


def test_a_run_that_cannot_be_done_is_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    done = CliRunner().invoke(command.main, ["F6b", "--seed", "s", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "the drill itself failed" in done.output


def test_an_unknown_drill_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(command.main, ["F99", "--out", str(tmp_path / "out")])
    assert done.exit_code == 64
    assert "Choose from" in done.output
    assert not (tmp_path / "out").exists()


def test_the_struck_ranks_log_is_read_from_each_bundle_that_has_it(tmp_path: Path) -> None:
    tail = tmp_path / "incidents" / "1" / "ranks" / "2" / "log_tail.txt"
    tail.parent.mkdir(parents=True)
    tail.write_bytes(b"Traceback \xff\n")
    events = [Event(at_unix_s=1.0, kind="bundle_sealed", path=path) for path in ("incidents/1", "incidents/2")]
    assert runner.read_log_tails(events, tmp_path, 2) == {"incidents/1": "Traceback \ufffd\n"}


def test_the_command_is_the_users_own_words() -> None:
    scene = Scene(folder=Path("/f"), ranks=4, rank=1, step=12)
    words = scene.training()
    assert words[:4] == ["torchrun", "--standalone", "--nproc-per-node", "4"]
    assert words[words.index("--resume") + 1] == "{checkpoint}"
