"""`rankpatrol capture` on real process trees: whoever is there is in the bundle, whoever cannot be read is in it with the reason."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankpatrol.agent.found_ranks import find_ranks
from rankpatrol.agent.on_request import capture, whom_by_pid
from rankpatrol.cli.main import call
from rankpatrol.collect import stacks
from rankpatrol.core.errors import BadInput
from rankpatrol.evidence.manifest import verify
from rankpatrol.evidence.reading import load_diagnosis, load_snapshot
from rankpatrol.system.clock import SystemClock
from standin_job import LAUNCHER, TRAINING, running

CAN_MOUNT = os.getuid() == 0 and shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0

# argv: what each of the two ranks does before it says `ready` and stands still.
TREE = """
import os, subprocess, sys, time
code = "import os, subprocess, sys, time, ctypes\\n" + sys.argv[1] + "\\nprint('ready', flush=True)\\ntime.sleep(60)"
def place(rank):
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
ranks = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=place(rank)) for rank in (0, 1)]
for rank in ranks:
    rank.stdout.readline()
print("ready", flush=True)
time.sleep(60)
"""
# What setproctitle does to the room behind the arguments: env_start and env_end are fields 50 and 51 of proc_pid_stat(5).
WIPES_ENVIRON = """
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
"""


@pytest.fixture
def tree():
    """Starts trees that end with the test."""
    started = []

    def start(code="pass", program=TREE, env=None):
        process = subprocess.Popen(
            [sys.executable, "-c", program, code], stdout=subprocess.PIPE, env=env, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.wait(10)
        process.stdout.close()


def test_a_launchers_ranks_are_found_by_their_environment(tree):
    found = find_ranks(tree())
    assert [record.rank for record in found.records] == [0, 1]
    assert (found.world_size, found.guessed) == (2, ())


def test_a_rank_that_is_named_itself_brings_its_children_and_not_its_peers(tree):
    launcher = find_ranks(tree("subprocess.Popen(['sleep', '60'])"))
    one = find_ranks(launcher.records[1].process.pid)
    assert [record.rank for record in one.records] == [1]
    assert one.world_size == 2


def test_a_shell_around_a_rank_is_not_the_rank(tree):
    wrapped = TREE.replace('[sys.executable, "-c", code]', '["sh", "-c", \'"$@"; exit $?\', "sh", sys.executable, "-c", code]')
    found = find_ranks(tree(program=wrapped))
    names = [Path(f"/proc/{record.process.pid}/exe").readlink().name for record in found.records]
    assert [name[:6] for name in names] == ["python", "python"]


def test_torchrun_as_a_task_of_slurms_is_no_rank(tree):
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}
    found = find_ranks(tree(env={**os.environ, **slurm}))
    assert [record.rank for record in found.records] == [0, 1]


def test_ranks_whose_environment_was_written_over_are_numbered_and_it_is_said(tree, tmp_path):
    root = tree(WIPES_ENVIRON)
    found = find_ranks(root)
    # Nobody tells of a rank any more: what was named is taken as one, with all below it.
    assert [record.process.pid for record in found.records] == [root]
    assert found.guessed == (root,)
    capture(tmp_path / "bundle", whom_by_pid(root), "the test", SystemClock())
    assert f"nobody told the rank of process {root}" in load_diagnosis(tmp_path / "bundle").sentence


@pytest.mark.timeout(60)
def test_a_wiped_environment_does_not_hide_a_rank_below_its_shim(tmp_path):
    wiping = tmp_path / "wiping.py"
    wiping.write_text(f"import ctypes, time\n{WIPES_ENVIRON}\nprint('ready', flush=True)\ntime.sleep(9)\n")
    with running(tmp_path, launcher=(str(LAUNCHER), "2", str(wiping))) as job:
        started = job.wait_for("attempt_started")
        launcher = json.loads((job.run_dir() / "launcher.json").read_text())["pid"]
        found = find_ranks(launcher)
        assert {record.rank: record.process.pid for record in found.records} == {
            int(rank): place["pid"] for rank, place in started["ranks"].items()
        }
        assert found.guessed == ()


def test_the_bundle_is_whole_and_holds_every_rank_with_its_children_and_log(tree, tmp_path, capsys):
    code = f"subprocess.Popen(['sleep', '60']); log = os.open({str(tmp_path)!r} + '/' + os.environ['RANK'], os.O_WRONLY | os.O_CREAT)"
    code += "; terminal = os.dup(1); os.dup2(log, 1); print('step 7', flush=True); os.write(terminal, b'ready\\n')"
    out = tmp_path / "bundle"
    assert call(["capture", "--pid", str(tree(code)), "--out", str(out)]) in {0, 1}
    assert "2 ranks and 2 processes below them" in capsys.readouterr().out
    seen = verify(out)
    assert seen.ok, seen.problems
    for entry in seen.manifest.ranks:
        assert {"stack", "proc", "log_tail", "children"} <= set(entry.captured)
    assert load_snapshot(out).ranks[0].log.step == 7
    assert load_diagnosis(out).verdict == "undetermined"
    assert seen.manifest.incident == 0, "no action can ever be based on it"
    assert seen.manifest.touched == ("every rank and its descendants: py-spy without a pause, once",)


def test_no_rank_is_ever_stopped_for_it(tree, tmp_path, monkeypatch):
    told = tmp_path / "told"
    stub = tmp_path / "py-spy"
    stub.write_text(f'#!/bin/sh\necho "$@" >>{told}\nexit 1\n')
    stub.chmod(0o755)
    monkeypatch.setattr(stacks, "_find_py_spy", lambda: str(stub))
    capture(tmp_path / "bundle", whom_by_pid(tree()), "the test", SystemClock())
    assert told.read_text()
    assert all("--nonblocking" in line for line in told.read_text().splitlines())


@pytest.mark.timeout(60)
def test_a_job_is_captured_by_its_folder_and_by_its_id_and_goes_on(tmp_path):
    name = f"captured-{os.getpid()}"
    with running(tmp_path, launcher=(str(LAUNCHER), "2", str(TRAINING), "8", "well"), name=name) as job:
        job.wait_for("attempt_started")
        done = job.type("capture", "--job", name, "--out", "by-folder", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [rank["rank"] for rank in json.loads(done.stdout)["ranks"]] == [0, 1]
        # From elsewhere its id is enough.
        env = {**job.env}
        words = [sys.executable, "-m", "rankpatrol", "capture", "--job", name, "--out", str(tmp_path / "by-id")]
        assert subprocess.run(words, env=env, cwd="/", timeout=30, check=False).returncode == 0
        assert job.process.wait(30) == 0
    for name in ("by-folder", "by-id"):
        assert verify(tmp_path / name).ok
        assert load_snapshot(tmp_path / name).ranks[1].log.step is not None
    assert "alert" not in job.kinds()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 64, "Give one of --pid PID and --job ID"),
        (["--pid", "1", "--job", "x"], 64, "Give one of"),
        (["--pid", "4194304"], 65, "there is no process 4194304"),
        (["--pid", "99999999999999999999"], 65, "there is no process"),
        (["--job", "never-started"], 65, "no job 'never-started' runs here"),
    ],
)
def test_whom_to_capture_must_be_said_and_be_there(tmp_path, monkeypatch, capsys, words, code, said):
    monkeypatch.chdir(tmp_path)
    assert call(["capture", *words, "--out", "bundle"]) == code
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_overwritten(tmp_path, capsys):
    assert call(["capture", "--pid", str(os.getpid()), "--out", str(tmp_path)]) == 65
    assert "is there already" in capsys.readouterr().err


def test_a_process_that_has_gone_meanwhile_is_bad_input(tmp_path):
    process = subprocess.Popen(["sleep", "60"])
    whom = whom_by_pid(process.pid)
    process.kill()
    process.wait(10)
    with pytest.raises(BadInput, match="no rank is left"):
        capture(tmp_path / "bundle", whom, "the test", SystemClock())
    assert not (tmp_path / "bundle").exists()
