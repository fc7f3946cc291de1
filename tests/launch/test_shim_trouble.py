"""Whatever of the patrol is gone, full, closed or stuck: the rank trains, is heard, and ends as it ends."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launch_subjects import PRELUDE, Job, heard_ready, rest_of, shim_command, shimmed, wait_for

CAN_MOUNT = os.getuid() == 0 and shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
needs_mount = pytest.mark.skipif(not CAN_MOUNT, reason="only root may mount")
TRAINS = "print('resume', repr(sys.argv[1]))\nprint('x' * 200000)\nsys.exit(3)"
SAID = b"resume ''\n" + b"x" * 200000 + b"\n"


@pytest.fixture(autouse=True)
def _checkpoints_are_known(job: Job) -> None:
    job.write(checkpoints="/checkpoints")


def trains(job: Job, before: str = "", *, restarts: int = 0) -> bytes:
    """Run a rank after `before`, a line of shell in a mount namespace of its own; what the shim had to say."""
    shell = ["unshare", "-m", "/bin/sh", "-ec", f'{before}\nexec "$0" "$@"'] if before else []
    done = subprocess.run(
        [*shell, *shim_command(["-c", PRELUDE + TRAINS, "{checkpoint}"])],
        env=job.environment(restarts=restarts),
        check=False,
        capture_output=True,
        timeout=15,
    )
    assert (done.returncode, done.stdout) == (3, SAID), done.stderr
    return done.stderr


def full(folder: Path, aside: Path) -> str:
    """A disk with what was there, and no room for a byte more: what a run directory sets aside is gone, too."""
    return f"""
    cp -a {folder} {aside}; rm -f {aside}/reserve; mount -t tmpfs -o size=64k none {folder}; cp -a {aside}/. {folder}
    dd if=/dev/zero of={folder}/filler bs=4k 2>/dev/null || true"""


def test_a_run_directory_that_is_gone_stays_gone(job: Job) -> None:
    job.run_dir.remove()
    said = trains(job)
    assert said.count(b"rank 0 is not seen by the patrol") == 1
    assert not job.run_dir.path.exists()


@needs_mount
@pytest.mark.parametrize("trouble", ["mount --bind -o ro {0} {0} && mount -o remount,ro,bind {0}", "full"])
def test_a_run_directory_that_cannot_be_written_costs_the_watch_and_not_the_log(job: Job, trouble: str) -> None:
    before = full(job.run_dir.path, job.job_dir.parent / "aside") if trouble == "full" else trouble.format(job.run_dir.path)
    assert b"rank 0 is not seen by the patrol" in trains(job, before)
    assert job.log().read_bytes() == SAID


@needs_mount
def test_a_full_run_directory_does_not_send_a_later_attempt_back_to_the_start(job: Job) -> None:
    (job.run_dir.path / "newest_good.json").write_text('{"checkpoint": "/checkpoints/step20", "step": 20}')
    shell = ["unshare", "-m", "/bin/sh", "-ec", full(job.run_dir.path, job.job_dir.parent / "aside") + '\nexec "$0" "$@"']
    command = shim_command(["-c", "import sys; print(sys.argv[1])", "{checkpoint}"], {"resume_s": 0.2})
    done = subprocess.run([*shell, *command], env=job.environment(restarts=1), capture_output=True, timeout=15, check=True)
    assert done.stdout == b"/checkpoints/step20\n"


def test_a_run_directory_removed_under_way_harms_nobody(job: Job) -> None:
    with shimmed(job, "ready()\nforever()") as shim:
        heard_ready(shim)
        job.place()
        job.run_dir.remove()
        os.killpg(shim.pid, signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM


def test_a_job_directory_removed_under_way_harms_nobody(job: Job, tmp_path: Path) -> None:
    code = f"ready()\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\nprint('x' * 200000)"
    with shimmed(job, code) as shim:
        heard_ready(shim)
        shutil.rmtree(job.job_dir)
        (tmp_path / "go").touch()
        assert len(rest_of(shim)) == 200001
        assert shim.wait(10) == 0
    assert not job.job_dir.exists()


def test_a_job_directory_that_is_a_file_costs_the_log_alone(job: Job) -> None:
    job.job_dir.rmdir()
    job.job_dir.touch()
    assert b"rank0.log is not kept" in trains(job)
    assert job.exit() is not None


@needs_mount
def test_a_full_job_directory_costs_the_log_alone(job: Job) -> None:
    said = trains(job, full(job.job_dir, job.job_dir.parent / "aside"))
    assert said == b"" or b"is not kept" in said
    assert job.exit() is not None


@needs_mount
def test_a_log_that_fills_its_disk_costs_the_rest_of_it(job: Job) -> None:
    before = f"mount -t tmpfs -o size=64k none {job.job_dir}"
    assert trains(job, before) == b""


# The control socket.


@pytest.mark.parametrize(
    "message",
    [
        b"garbage",
        b"\xff\x00",
        b"[" * 4000,
        b"null",
        b'"do"',
        {"do": "kill"},
        {"do": "end", "grace_s": None},
        {"do": "end", "grace_s": "5"},
        {"do": "end", "grace_s": -1},
        {"do": "end", "grace_s": [1]},
        b'{"do": "end", "grace_s": NaN}',
        b'{"do": "end", "grace_s": 1e999}',
        b'{"do": "end", "grace_s": 1' + b"0" * 400 + b"}",
    ],
)
def test_garbage_on_the_control_socket_is_refused(job: Job, message: object) -> None:
    with shimmed(job, "ready()\nforever()") as shim:
        heard_ready(shim)
        assert job.ask(message) == {"ok": False}
        assert job.ask({"do": "end", "grace_s": 5}) == {"ok": True}
        assert shim.wait(10) == -signal.SIGTERM
    told = job.exit()
    assert told is not None
    assert told.by_request


def test_clients_that_say_nothing_hold_nobody_up(job: Job) -> None:
    with shimmed(job, "ready()\nforever()") as shim:
        heard_ready(shim)
        lines = [job.dial() for _ in range(30)]
        began = time.monotonic()
        assert job.ask({"do": "nothing"}) == {"ok": False}
        os.killpg(shim.pid, signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM
        assert time.monotonic() - began < 1
        for line in lines:
            line.close()


def test_a_client_that_leaves_before_its_answer_harms_nobody(job: Job) -> None:
    with shimmed(job, "ready()\nforever()") as shim:
        heard_ready(shim)
        for message in (b"", b"{}", b'{"do":'):
            with job.dial() as line:
                line.sendall(message)
        assert job.ask({}) == {"ok": False}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_cannot_reach_the_socket(job: Job) -> None:
    with shimmed(job, "ready()\nforever()") as shim:
        heard_ready(shim)
        path = job.run_dir.path / "shims" / "0.0.sock"
        wait_for(lambda: path.exists() or None)
        dial = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        done = subprocess.run(["/usr/bin/env", "python3", "-c", dial, str(path)], user=65534, capture_output=True, timeout=10, check=False)
        assert b"Permission denied" in done.stderr
        assert shim.poll() is None
