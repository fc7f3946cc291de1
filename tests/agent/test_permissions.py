"""An agent that may not see all: it is said plainly, what is left is told as suspected, and nobody is accused or ended for it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankpatrol.agent.found_ranks import find_ranks
from rankpatrol.collect.processes import sample_process
from rankpatrol.core.records import Missing
from rankpatrol.evidence.manifest import load_manifest, verify
from rankpatrol.system.process import identify, is_hidden
from standin_job import LAUNCHER, TRAINING, running

IS_ROOT = os.getuid() == 0
# Root as in a default container: without the one capability that lets it trace others (capabilities(7)).
NO_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
CAN_DROP = IS_ROOT and shutil.which("setpriv") and subprocess.run([*NO_PTRACE, "true"], check=False).returncode == 0
# Without a gid, root's own group would be spared.
HIDE = 'mount -t proc -o hidepid=2,gid=65533 proc /proc && exec "$@"'
HIDDEN_PROC = ("unshare", "-m", "sh", "-c", HIDE, "sh", *NO_PTRACE)
CAN_HIDE = CAN_DROP and subprocess.run([*HIDDEN_PROC, "true"], capture_output=True, check=False).returncode == 0

pytestmark = [pytest.mark.timeout(90), pytest.mark.skipif(not CAN_DROP, reason="needs root, and setpriv")]
needs_hiding = pytest.mark.skipif(not CAN_HIDE, reason="needs a mount namespace")
ANOTHER_USERS = (str(LAUNCHER), "3", str(TRAINING), "1", "nobody")


def end(job):
    job.process.send_signal(signal.SIGTERM)
    job.process.wait(40)


def test_ranks_that_may_not_be_traced_are_suspected_and_never_acted_upon(tmp_path):
    with running(tmp_path, "--no-probe", launcher=ANOTHER_USERS, before=NO_PTRACE) as job:
        alert = job.wait_for("alert")
        assert (alert["certainty"], alert["suspect_ranks"], alert["cause"]) == ("suspected", [], "unknown")
        assert "too little is known of ranks 0-2 to tell who waits for whom" in alert["sentence"]
        assert "the kernel forbids tracing process" in job.said()
        assert "`rankpatrol doctor` tells what is missing" in job.said()
        why = job.type("why", "job")
        assert "against: the kernel forbids tracing process" in " ".join(why.stdout.split())
        end(job)
    assert not {"verdict", "action"} & set(job.kinds())
    sealed = next(event["path"] for event in job.events() if event["kind"] == "bundle_sealed")
    assert verify(Path(sealed)).ok
    for entry in load_manifest(Path(sealed)).ranks:
        assert "the kernel forbids tracing process" in entry.missing["stack"]
        assert "proc" in entry.captured, "what every user may read is in it"


@pytest.mark.parametrize("makes_itself", ["nobody", "undumpable"])
def test_where_nobody_may_trace_a_rank_tells_its_line_itself(tmp_path, makes_itself):
    with running(tmp_path, launcher=(*ANOTHER_USERS[:-1], makes_itself), before=NO_PTRACE) as job:
        alert = job.wait_for("alert")
        assert alert["suspect_ranks"] == [1]
        # One line of evidence: what it waits for in the kernel is hidden as well, so nobody is ended for it.
        assert alert["certainty"] == "suspected"
        assert "in main (standin_training.py:" in alert["sentence"]
        assert "ranks 0 and 2 wait for it in all_reduce" in alert["sentence"]
        end(job)
    assert not {"verdict", "action"} & set(job.kinds())
    sealed = next(event["path"] for event in job.events() if event["kind"] == "bundle_sealed")
    ranks = {entry.rank: entry for entry in load_manifest(Path(sealed)).ranks}
    assert all("stack" in entry.captured for entry in ranks.values())
    assert json.loads((Path(sealed) / "ranks" / "1" / "stack.json").read_text())["told"] is True
    assert any("at a SIGURG" in word for word in json.loads((Path(sealed) / "manifest.json").read_text())["touched"])


def test_the_same_root_may_trace_ranks_that_have_no_more_rights_than_itself(tmp_path):
    with running(tmp_path, before=NO_PTRACE) as job:
        assert job.process.wait(60) == 0, job.said()
    verdict = next(event for event in job.events() if event["kind"] == "verdict")
    assert (verdict["culprit_ranks"], verdict["certainty"]) == ([1], "supported")


@needs_hiding
def test_a_proc_that_hides_others_does_not_hide_ones_own_ranks(tmp_path):
    with running(tmp_path, before=HIDDEN_PROC) as job:
        assert job.process.wait(60) == 0, job.said()
    assert [event["culprit_ranks"] for event in job.events() if event["kind"] == "verdict"] == [[1]]


@needs_hiding
def test_ranks_that_are_hidden_are_not_taken_for_dead(tmp_path):
    with running(tmp_path, launcher=(*ANOTHER_USERS[:3], "5", "well", "nobody"), before=HIDDEN_PROC) as job:
        assert job.process.wait(60) == 0, job.said()
    assert "the kernel hides ranks from this user" in job.said()
    assert not {"alert", "verdict", "action"} & set(job.kinds())
    ended = next(event for event in job.events() if event["kind"] == "attempt_ended")
    assert (ended["reason"], ended["exit_codes"]) == ("finished", {"0": 0, "1": 0, "2": 0})


def of_nobody():
    """A process of another user's."""
    return subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"])


def ask(code, before):
    words = [*before, sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)


@needs_hiding
def test_what_is_hidden_is_told_from_what_is_gone():
    process = of_nobody()
    try:
        code = "from rankpatrol.collect.processes import sample_process; from rankpatrol.system.process import identify, is_hidden; "
        code += f"print(identify({process.pid}), is_hidden({process.pid}), sample_process({process.pid}, with_files=False).reason)"
        done = ask(code, HIDDEN_PROC)
        assert done.stdout.startswith("None True"), done.stderr
        assert "hides it from this user" in done.stdout
    finally:
        process.kill()
        process.wait(10)
    seen = sample_process(process.pid, with_files=False)
    assert (identify(process.pid), is_hidden(process.pid)) == (None, False)
    assert isinstance(seen, Missing)
    assert seen.reason == f"process {process.pid} is gone"


def capture(pid, out, before):
    words = [*before, sys.executable, "-m", "rankpatrol", "capture", "--pid", str(pid), "--out", str(out)]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)


@needs_hiding
def test_capturing_what_is_hidden_is_missing_permission_and_leaves_nothing(tmp_path):
    process = of_nobody()
    try:
        done = capture(process.pid, tmp_path / "bundle", HIDDEN_PROC)
    finally:
        process.kill()
        process.wait(10)
    assert done.returncode == 77, done.stdout + done.stderr
    assert "hidden from this user" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_capturing_what_may_not_be_traced_seals_what_may_be_read_with_the_reasons(tmp_path):
    process = of_nobody()
    try:
        done = capture(process.pid, tmp_path / "bundle", NO_PTRACE)
    finally:
        process.kill()
        process.wait(10)
    assert done.returncode == 1, done.stderr
    assert "no stack: " in done.stdout
    (entry,) = load_manifest(tmp_path / "bundle").ranks
    assert "proc" in entry.captured
    assert verify(tmp_path / "bundle").ok


def test_a_tree_whose_environment_may_not_be_read_is_still_one_tree():
    process = of_nobody()
    try:
        code = "from rankpatrol.agent.found_ranks import find_ranks; "
        code += f"print([(each.rank, each.process.pid) for each in find_ranks({process.pid}).records])"
        assert ask(code, NO_PTRACE).stdout == f"[(0, {process.pid})]\n"
        assert find_ranks(process.pid).guessed == (process.pid,)
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize(("before", "levels"), [(NO_PTRACE, {"other-users": "warning"}), ((), {"stacks": "ok", "hidepid": "ok"})])
def test_the_doctor_sees_what_is_missing(before, levels):
    done = subprocess.run(
        [*before, sys.executable, "-m", "rankpatrol", "doctor", "--json", "--python", "/bin/true"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    rows = {row["name"]: row["level"] for row in json.loads(done.stdout)["rows"]}
    assert {name: rows[name] for name in levels} == levels


@needs_hiding
def test_the_doctor_sees_a_proc_that_hides():
    words = [*HIDDEN_PROC, sys.executable, "-m", "rankpatrol", "doctor", "--json", "--python", "/bin/true"]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["hidepid"]["level"] == "warning"
    assert "hidepid=" in rows["hidepid"]["found"]
