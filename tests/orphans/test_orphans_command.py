"""`rankpatrol orphans` as people and Slurm call it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from orphan_scenes import scan
from orphan_subjects import Victims, cgroup2, needs_namespace

from cgroups import remove_cgroup
from rankpatrol.cli.main import call
from rankpatrol.cli.orphan_words import show
from rankpatrol.cli.orphans import orphans
from rankpatrol.core.records import Missing

PLAYER = Path(__file__).with_name("command_player.py")
EPILOG = {"SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_JOB_ID": "77", "SLURM_JOB_UID": "0"}
SQUEUE = """#!/bin/sh
echo called >> {folder}/squeue.calls
case "$*" in
  *--jobs=77*) echo "77|COMPLETED|0|1000|2000" ;;
  *--jobs=80*) echo "80|RUNNING|0|1000|Unknown" ;;
esac
"""
Play = Callable[..., dict[str, Any]]


@pytest.fixture
def start_play(victim: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    mount = cgroup2()
    assert mount is not None
    top = mount / f"rankpatrol-command-{time.time_ns()}"
    top.mkdir()
    (tmp_path / "squeue").write_text(SQUEUE.format(folder=tmp_path))
    (tmp_path / "squeue").chmod(0o755)

    def start(*words: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, PLAYER, top, victim, tmp_path, *words],
            env={**os.environ, **path, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield start
    remove_cgroup(top)


@pytest.fixture
def play(start_play: Callable[..., subprocess.Popen[str]]) -> Play:
    def play(*words: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        playing = start_play(*words, environment=environment)
        out, errors = playing.communicate()
        assert playing.returncode == 0, errors
        return json.loads(out)

    return play


@needs_namespace
@pytest.mark.parametrize("script", ["Prolog", "Epilog"])
def test_a_script_of_slurm_without_a_job_is_shown_its_own_line(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["orphans", f"--{script.lower()}"]) == 64
    assert f'In {script}: rankpatrol orphans --job "$SLURM_JOB_ID" --{script.lower()}' in capsys.readouterr().err


def test_the_header_names_nvml_once(capsys: pytest.CaptureFixture[str]) -> None:
    show(scan(gpus=Missing("NVML: NVML Shared Library Not Found")), (), names=True)
    assert "· NVML: NVML Shared Library Not Found\n" in capsys.readouterr().out


def test_without_yes_it_says_what_it_would_do_and_does_nothing(play: Play) -> None:
    told = play("--reap")
    assert told["code"] == 2
    assert told["alive"] == {"77": True, "80": True}
    assert told["heard"] == {"77": [], "80": []}
    assert f"dry run: 1 proven, add --yes to end exactly these: {told['pids']['77']}" in told["output"]


@needs_namespace
def test_reap_and_yes_end_the_proven_one_and_its_neighbour_hears_nothing(play: Play, tmp_path: Path) -> None:
    told = play("--reap", "--yes")
    assert told["code"] == 0, told["output"]
    assert told["alive"] == {"77": False, "80": True}
    assert told["heard"] == {"77": ["15"], "80": []}
    assert "(SIGTERM, SIGKILL)" in told["output"]
    assert len(list((tmp_path / "state/orphans").iterdir())) == 1


@needs_namespace
def test_a_kill_switch_stops_every_release(play: Play, tmp_path: Path) -> None:
    (tmp_path / "no-reap").touch()
    told = play("--reap", "--yes")
    assert told["alive"] == {"77": True, "80": True}
    assert told["heard"] == {"77": [], "80": []}
    assert "no-reap is there" in told["output"]


@needs_namespace
def test_json_is_one_document_with_verdict_proof_and_why(play: Play) -> None:
    told = json.loads(play("--json")["output"])
    by_job = {one["job"]: one for one in told["findings"]}
    assert (by_job["77"]["verdict"], by_job["77"]["proven"], by_job["77"]["rows"]) == ("orphan", True, [5])
    assert (by_job["80"]["verdict"], by_job["80"]["proven"]) == ("job's own", False)
    assert [one["job"] for one in told["plan"]["orphans"]] == ["77"]
    assert told["pids_can_be_trusted"] is True


@needs_namespace
def test_only_the_job_that_is_asked_for_is_judged(play: Play) -> None:
    told = play("--job", "80", "--reap", "--yes")
    assert told["code"] == 0
    assert told["alive"] == {"77": True, "80": True}


@needs_namespace
def test_an_epilog_calls_no_slurm_command_and_tells_slurmd_to_drain(play: Play, tmp_path: Path) -> None:
    told = play("--job", "77", "--epilog", environment=EPILOG)
    assert told["code"] == 2
    assert not (tmp_path / "squeue.calls").exists()
    assert told["heard"] == {"77": [], "80": []}


@needs_namespace
def test_an_epilog_that_releases_leaves_the_node_in_service(play: Play, tmp_path: Path) -> None:
    told = play("--job", "77", "--epilog", "--reap", "--yes", environment=EPILOG)
    assert told["code"] == 0
    assert told["alive"] == {"77": False, "80": True}
    assert not (tmp_path / "squeue.calls").exists()


@needs_namespace
def test_an_epilog_by_hand_proves_nothing_and_does_not_drain(play: Play) -> None:
    told = play("--job", "77", "--epilog", "--reap", "--yes", "--json")
    assert told["code"] == 0
    assert told["alive"] == {"77": True, "80": True}
    assert "do not show that slurmd runs this" in told["output"]


@needs_namespace
def test_the_second_sight_may_be_the_next_calls(play: Play) -> None:
    told = play("--scans", "1", "--reap", "--yes", "+", "--scans", "1", "--reap", "--yes")
    assert told["codes"] == [1, 0], told["output"]
    assert "over 2 scans" in told["output"]
    assert told["alive"] == {"77": False, "80": True}


@needs_namespace
def test_a_sight_of_other_device_files_is_no_sight(play: Play) -> None:
    told = play("--scans", "1", "--device", "/dev/null", "+", "--scans", "1")
    assert told["codes"] == [1, 1], told["output"]


@needs_namespace
def test_a_prolog_goes_by_the_word_of_earlier_epilogs_and_calls_no_slurm_command(play: Play, tmp_path: Path) -> None:
    told = play("--job", "77", "--epilog", "+", "--job", "90", "--prolog", "--reap", "--yes", environment=EPILOG)
    assert told["codes"] == [2, 0], told["output"]
    assert told["alive"] == {"77": False, "80": True}
    assert told["heard"] == {"77": ["15"], "80": []}
    assert not (tmp_path / "squeue.calls").exists()


@needs_namespace
def test_a_prolog_that_ends_nothing_tells_slurmd_to_drain(play: Play) -> None:
    told = play("--job", "77", "--epilog", "+", "--job", "90", "--prolog", environment=EPILOG)
    assert told["codes"] == [2, 2], told["output"]
    assert told["heard"] == {"77": [], "80": []}


@needs_namespace
def test_a_prolog_without_an_epilogs_word_proves_nothing_and_does_not_drain(play: Play) -> None:
    told = play("--job", "90", "--prolog", "--reap", "--yes")
    assert told["code"] == 0
    assert told["alive"] == {"77": True, "80": True}
    assert "no scheduler was asked" in told["output"]


@needs_namespace
def test_the_prolog_of_the_job_itself_leaves_the_job_alone(play: Play) -> None:
    told = play("--job", "77", "--epilog", "+", "--job", "77", "--prolog", "--reap", "--yes", environment=EPILOG)
    assert told["codes"] == [2, 0], told["output"]
    assert told["alive"] == {"77": True, "80": True}


@needs_namespace
@pytest.mark.timeout(60)
def test_a_watch_releases_at_the_next_scan_and_says_what_is_new_once(start_play: Callable[..., subprocess.Popen[str]]) -> None:
    with start_play("--watch", "--reap", "--yes") as watch:
        assert watch.stdout is not None
        heard = []
        for line in watch.stdout:
            heard.append(line)
            if line.startswith("released"):
                break
        watch.kill()
    assert [line.split(": ")[0].split(" ", 2)[2] for line in heard[:2]] == ["unknown", "orphan"]
    assert heard[2].startswith("released"), heard


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))


def invoke(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(orphans, [*words, "--every", "10ms"], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, done.output


def test_a_stranger_is_shown_and_left_to_its_owner(victims: Victims, tmp_path: Path) -> None:
    (tmp_path / "nvidia3").touch()
    pid = victims.start(tmp_path / "nvidia3")
    code, output = invoke("--device", f"{tmp_path}/nvidia*")
    assert code in {1, 3}
    row = next(line.split() for line in output.splitlines() if f" {pid} " in line)
    assert row[:3] == ["3", str(pid), "victim"]
    assert victims.heard(pid) == []


def test_a_node_without_holders_is_well(tmp_path: Path) -> None:
    code, output = invoke("--device", f"{tmp_path}/nvidia*")
    assert code in {0, 3}
    assert "nobody holds a device" in output


def test_in_a_container_it_says_that_pids_cannot_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victims: Victims) -> None:
    (tmp_path / "nvidia3").touch()
    pid = victims.start(tmp_path / "nvidia3")
    monkeypatch.setattr("rankpatrol.orphans.scan.read_namespace", lambda: "pid:[4026532000]")
    code, output = invoke("--device", f"{tmp_path}/nvidia*", "--reap", "--yes")
    assert code == 3
    assert "process numbers here cannot be trusted" in output
    assert victims.heard(pid) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--yes"],
        ["--epilog"],
        ["--prolog"],
        ["--watch", "--scans", "2"],
        ["--watch", "--job", "7"],
        ["--every", "3"],
        ["--scans", "0"],
        ["--nonsense"],
    ],
)
def test_wrong_words_are_refused_before_anything_is_looked_at(words: list[str]) -> None:
    assert call(["orphans", *words]) == 64
