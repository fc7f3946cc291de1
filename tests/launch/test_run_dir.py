"""Where a run directory lies, and what it is when there is no room."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from rankpatrol.core.errors import BadInput
from rankpatrol.launch import rundir
from rankpatrol.launch.rundir import RunDir

CAN_MOUNT = os.getuid() == 0 and shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_closed_to_others_and_its_sockets_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir.create()
    assert run_dir.path.stat().st_mode & 0o077 == 0
    assert len(str(run_dir.path / "shims" / "9999.999999.sock")) <= 107
    run_dir.remove()
    assert not run_dir.path.exists()


def test_a_login_sessions_folder_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pam_systemd(8) empties it at logout, and `nohup` trainings outlive that."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    run_dir = RunDir.create()
    assert list(tmp_path.iterdir()) == []
    run_dir.remove()


def test_a_folder_too_deep_for_sockets_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    run_dir = RunDir.create()
    assert list(deep.iterdir()) == []
    run_dir.remove()


def test_nowhere_to_go_is_said_with_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "run_dir_folders", lambda: ["/no/such", "/proc"])
    with pytest.raises(BadInput, match=r"no room for the run directory \(/no/such: No such file or directory; /proc: ") as told:
        RunDir.create()
    assert "TMPDIR=" in told.value.help


@pytest.mark.skipif(not CAN_MOUNT, reason="only root may mount")
def test_a_full_disk_leaves_no_half_made_directory(tmp_path: Path) -> None:
    """In a mount namespace of its own: a tmpfs with inodes to spare and no room."""
    code = f"""
import os
from rankpatrol.launch import rundir
rundir.run_dir_folders = lambda: [{str(tmp_path)!r}]
try:
    rundir.RunDir.create()
except rundir.BadInput as problem:
    print(problem, os.listdir({str(tmp_path)!r}))
"""
    shell = f'mount -t tmpfs -o size=64k none {tmp_path}; dd if=/dev/zero of={tmp_path}/filler bs=4k 2>/dev/null || true; exec "$0" -c "$1"'
    from sys import executable

    done = subprocess.run(
        ["unshare", "-m", "/bin/sh", "-ec", shell, executable, code], capture_output=True, timeout=10, check=True, text=True
    )
    assert done.stdout == f"no room for the run directory ({tmp_path}: No space left on device) ['filler']\n"
