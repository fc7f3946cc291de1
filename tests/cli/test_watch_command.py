"""`rankpatrol watch` goes by the settings, says how it ends, and looks at many jobs side by side."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import pytest

from rankpatrol.agent.once import Glimpse
from rankpatrol.cli import watch as watch_module
from rankpatrol.cli.main import call
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import ProcessId
from rankpatrol.discover.records import FoundJob, Survey, Unnumbered

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def ranks():
    """Two processes that look like ranks of one job."""
    with ExitStack() as stack:
        started = []
        for number in ("0", "1"):
            variables = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": "2", "MASTER_PORT": "29873"}
            words = [sys.executable, "-c", WAITS]
            process = subprocess.Popen(words, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            process.stdout.readline()
        yield started


@contextmanager
def watching(folder, pid, *options, **variables):
    env = {**os.environ, "RANKPATROL_STATE_DIR": str(folder / "state"), **variables}
    words = [sys.executable, "-m", "rankpatrol", "watch", "--pid", str(pid), *options]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env, cwd=folder) as process, ExitStack() as stack:
        stack.callback(process.kill)
        yield process


def spec_in(jobs_dir):
    (folder,) = jobs_dir.iterdir()
    return folder, json.loads((folder / "job.json").read_text())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["environment", "file", "command line"])
def test_it_goes_by_the_settings_and_says_how_it_ended(tmp_path, ranks, place):
    (tmp_path / "other.toml").write_text(f'patience = "7s"\njobs-dir = "{tmp_path}/jobs"\npolicy = "recover"\n')
    options, variables = (), {}
    if place == "environment":
        variables = {"RANKPATROL_PATIENCE": "7s", "RANKPATROL_JOBS_DIR": str(tmp_path / "jobs"), "RANKPATROL_POLICY": "recover"}
    elif place == "file":
        options = ("--config", "other.toml")
    else:
        options = ("--patience", "7s", "--jobs-dir", "jobs")
        variables = {"RANKPATROL_PATIENCE": "9m"}
    with watching(tmp_path, ranks[0].pid, *options, **variables) as watch:
        assert any("watching 2 ranks, attempt 0" in line for line in iter(watch.stderr.readline, ""))
        folder, spec = spec_in(tmp_path / "jobs")
        watch.send_signal(signal.SIGINT)
        said = watch.communicate()[1]
        assert watch.returncode == 0
    assert (spec["patience_s"], spec["policy"]) == (7.0, "observe")
    assert "the watch ends (SIGINT); what was watched goes on" in said
    assert f"rankpatrol why {folder}" in said
    assert all(process.poll() is None for process in ranks)


def test_a_setting_that_is_none_is_refused_before_anything_is_watched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKPATROL_PATIENSE", "5s")
    assert call(["watch", "--all", "--once"]) == 64
    assert "RANKPATROL_PATIENCE" in capsys.readouterr().err
    monkeypatch.delenv("RANKPATROL_PATIENSE")
    assert call(["watch", "--all", "--once", "--patience", "5"]) == 64


class Looks:
    """Stands for the looks: tells how many run at once, and lets a first few go on only together."""

    def __init__(self, together):
        self._barrier, self._lock = threading.Barrier(together), threading.Lock()
        self._left, self.running, self.most = together, 0, 0

    def __call__(self, job, clock):
        with self._lock:
            self.running, self._left = self.running + 1, self._left - 1
            self.most, waits = max(self.most, self.running), self._left >= 0
        if waits:
            self._barrier.wait(10)
        with self._lock:
            self.running -= 1
        found = Diagnosis(verdict="healthy", cause="none", sentence="they move")
        return Glimpse(job=job.name, world_size=1, seconds=4.0, diagnosis=found, at={})


@pytest.mark.parametrize("everything", [False, True])
def test_a_process_that_is_anothers_is_no_permission(monkeypatch, capsys, everything):
    """Its environment, by which ranks are told, is shown to its user alone; to root as well."""
    ours = Unnumbered(process=ProcessId("boot", os.getpid(), 1), name="python", why="it is closed")
    monkeypatch.setattr(watch_module, "look_around", lambda _wanted: ((), Survey(jobs=(), unnumbered=(ours,))))
    which = ["--all"] if everything else ["--pid", str(os.getpid())]
    assert call(["watch", *which, "--once"]) == 65
    monkeypatch.setattr(watch_module, "_may_look", lambda _pid: False)
    assert call(["watch", *which, "--once"]) == 77
    assert "need their user, or root" in capsys.readouterr().err


def found(count):
    return tuple(
        FoundJob(key=str(number), name=f"job{number}", uid=0, launcher=None, ranks=(), patrolled_by=None) for number in range(count)
    )


@pytest.mark.parametrize(("jobs", "together", "most"), [(3, 3, 3), (40, 8, 8), (1, 1, 1)])
def test_all_jobs_are_looked_at_side_by_side_and_not_too_many_at_once(monkeypatch, capsys, jobs, together, most):
    looks = Looks(together)
    monkeypatch.setattr(watch_module, "glimpse", looks)
    monkeypatch.setattr(watch_module, "look_around", lambda _: (found(jobs), Survey(jobs=found(jobs), unnumbered=())))
    assert call(["watch", "--all", "--once", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["job"] for each in told["jobs"]] == [f"job{number}" for number in range(jobs)]
    assert looks.most <= most
