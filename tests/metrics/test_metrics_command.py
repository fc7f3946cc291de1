"""`run --metrics`: a real agent beside real ranks, read while they stand; and a job directory read when they are over."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankpatrol.cli.main import call
from standin_job import running

pytestmark = pytest.mark.timeout(90)


def scraped(url):
    """The samples by name, each as labels and value."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return read(answer.read().decode())


def read(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix("rankpatrol_"), []).append((sample.labels, sample.value))
    return found


def wait_until(holds, job, within_s=40):
    until = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < until, job.said()
        assert job.process.poll() is None, job.said()
        time.sleep(0.1)
    return found


def url_of(job):
    return wait_until(lambda: re.search(r"metrics: (http://\S+)", job.said()), job)[1]


def test_an_agent_tells_of_a_hang_while_it_stands_and_leaves_its_last_word(tmp_path):
    files = tmp_path / "textfiles"
    files.mkdir()
    with running(tmp_path, "--policy", "ask", "--metrics", "127.0.0.1:0", "--metrics-textfile", str(files)) as job:
        url = url_of(job)
        job.wait_for("question")
        found = wait_until(lambda: (now := scraped(url)).get("question_open", [({}, 0)])[0][1] == 1 and now, job)
        labels, number = found["incidents_open"][0]
        assert (labels["verdict"], labels["stage"], labels["job_id"], labels["node"], number) == (
            "hang",
            "sealed",
            "job",
            socket.gethostname(),
            1,
        )
        assert [labels["rank"] for labels, _ in found["rank_suspect"]] == ["1"]
        assert {labels["state"] for labels, _ in found["rank_state"]} == {"training"}
        still = {labels["rank"]: seconds for labels, seconds in found["rank_still_seconds"]}
        assert still["1"] > 1
        assert found["job_steps"][0][1] > 0
        assert found["bundle_seal_seconds_count"][0][1] == 1
        assert found["incident_detect_seconds"][0][1] < 30
        assert found["agent_resident_bytes"][0][1] < 80e6
        assert abs(found["agent_round_timestamp_seconds"][0][1] - time.time()) < 10
        attempts = found["attempts_total"]
        agent = json.loads((job.run_dir() / "agent.json").read_text())
        os.kill(agent["pid"], signal.SIGKILL)
        again = wait_until(
            lambda: len(re.findall(r"metrics: (http://\S+)", job.said())) == 2 and re.findall(r"metrics: (http://\S+)", job.said())[1], job
        )
        counted = wait_until(lambda: scraped(again), job)
        assert counted["attempts_total"] == attempts, "a new agent goes on with the same numbers"
        assert counted["verdicts_total"] == found["verdicts_total"]
        assert job.type("act", "job", "1", "--yes").returncode == 0
        assert job.process.wait(40) == 0, job.said()
        last = read((files / "rankpatrol-job.prom").read_text())
        assert last["job_ended"][0][0]["reason"] == "finished"
        assert last["attempts_total"][0][1] == 2
        assert {labels["how"]: number for labels, number in last["incidents_closed_total"]}["ended"] == 1
        printed = job.type("metrics", "job")
        assert printed.returncode == 0
        assert read(printed.stdout)["job_ended"] == last["job_ended"]
        assert read(printed.stdout)["goodput_ratio"] == last["goodput_ratio"]


def test_a_port_in_use_and_a_folder_that_is_not_there_harm_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with running(tmp_path, "--metrics", f"127.0.0.1:{port}", "--metrics-textfile", str(tmp_path / "no" / "such")) as job:
            assert job.process.wait(60) == 0, job.said()
    kinds = job.kinds()
    assert [kinds.count(kind) for kind in ("verdict", "bundle_sealed", "attempt_started")] == [1, 1, 2]
    assert job.said().count("metrics are not served") == 1
    assert job.said().count("metrics are not written") == 1


CAN_MOUNT = os.getuid() == 0 and shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@pytest.mark.skipif(not CAN_MOUNT, reason="only root may mount")
def test_a_full_disk_harms_nothing(tmp_path):
    folder = tmp_path / "textfiles"
    folder.mkdir()
    fill = f'mount -t tmpfs -o size=4k none {folder} && {{ dd if=/dev/zero of={folder}/filler bs=4k 2>/dev/null || true; }} && exec "$@"'
    with running(tmp_path, "--metrics-textfile", str(folder), before=("unshare", "-m", "sh", "-c", fill, "sh")) as job:
        assert job.process.wait(60) == 0, job.said()
    assert "job_ended" in job.kinds()
    assert job.said().count("metrics are not written") == 1
    assert "rankpatrol-job.prom: No space left on device. The patrol goes on" in job.said()


def test_nobody_asked_so_nothing_is_loaded(tmp_path):
    code = "import sys, rankpatrol.agent.__main__; print([n for n in sys.modules if n.startswith(('prometheus', 'rankpatrol.goodput.'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nobody_asked_so_nothing_listens(tmp_path):
    with running(tmp_path) as job:
        job.wait_for("attempt_started")
        agent = json.loads((job.run_dir() / "agent.json").read_text())["pid"]
        inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"}
        held = {path.readlink().name for path in Path(f"/proc/{agent}/fd").iterdir() if path.is_symlink()}
        assert not {f"socket:[{inode}]" for inode in inodes} & held
    assert "metrics" not in job.said()


def test_wrong_words_are_refused_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--metrics", "9464", "true"]) == 64
    assert "no address with a port" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_job_directory_of_an_older_version_can_be_read(tmp_path, capsys):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    ranks = [{"rank": 0, "node": "n1", "pid": 7, "exit_status": None, "still_for_s": 12.0, "step": 20, "at": None}]
    incident = {"incident": 1, "stage": "alerted", "diagnosis": {"sentence": "rank 1 sleeps"}}
    state = {"at_unix_s": 1.8e9, "job": "train", "ended": None, "attempt": 0, "step": 20, "ranks": ranks, "incident": incident}
    (folder / "state.json").write_text(json.dumps(state))
    assert call(["metrics", str(folder)]) == 0
    found = read(capsys.readouterr().out)
    assert found["rank_still_seconds"][0][1] == 12.0
    assert found["incidents_open"][0][0]["verdict"] == "unknown"
    assert call(["metrics", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["now"]["job"] == "train"


@pytest.mark.parametrize("spoiled", [{"ranks": 7}, {"checkpoints": []}, {"incident": {"stage": 3}}])
def test_a_state_that_is_none_is_said_in_a_line(tmp_path, capsys, spoiled):
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "state.json").write_text(json.dumps({"at_unix_s": 1.8e9, **spoiled}))
    assert call(["metrics", str(tmp_path)]) == 65
    assert "state.json cannot be read" in capsys.readouterr().err


def test_without_the_library_the_command_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "state.json").write_text('{"at_unix_s": 1.8e9}')
    monkeypatch.setitem(sys.modules, "rankpatrol.metrics.collector", None)
    assert call(["metrics", str(tmp_path)]) == 64
    assert "pip install '.[metrics]'" in capsys.readouterr().err
    assert call(["metrics", str(tmp_path), "--json"]) == 0
    shutil.rmtree(tmp_path)
