"""The switch that stops every action: it outlives everybody, and in doubt it stands."""

import os
from pathlib import Path

import pytest

from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.launch.pauses import Pause, lift_pause, machine_switch, read_pause, set_pause, who_asks

PAUSE = Pause(since_unix_s=1.8e9, by="eve@node1", why="the switch is being replaced", scope="machine")


def test_what_is_set_is_read_and_lifted_once(tmp_path: Path) -> None:
    switch = tmp_path / "state" / "paused.json"
    assert read_pause(switch, "machine") is None
    assert set_pause(switch, PAUSE) == PAUSE
    assert read_pause(switch, "machine") == PAUSE
    assert lift_pause(switch, "machine") == PAUSE
    assert lift_pause(switch, "machine") is None


def test_the_first_pause_stands(tmp_path: Path) -> None:
    switch = tmp_path / "paused.json"
    set_pause(switch, PAUSE)
    assert set_pause(switch, Pause(since_unix_s=1.9e9, by="bob@node1", scope="machine")) == PAUSE


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"by": 1}', b"\xff\xfe"])
def test_a_switch_that_cannot_be_read_pauses(tmp_path: Path, content: bytes) -> None:
    switch = tmp_path / "paused.json"
    switch.write_bytes(content)
    seen = read_pause(switch, "job")
    assert seen is not None
    assert "cannot be read" in seen.why
    assert seen.since_unix_s == pytest.approx(switch.stat().st_mtime)
    assert lift_pause(switch, "job") == seen
    assert read_pause(switch, "job") is None


def test_each_machine_that_shares_a_home_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKPATROL_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert machine_switch() == tmp_path / "rankpatrol" / f"paused-{os.uname().nodename}.json"


def test_a_folder_that_is_a_file_is_said_and_pauses_nobody(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    assert read_pause(tmp_path / "state" / "paused.json", "machine") is None
    with pytest.raises(BadInput, match="cannot pause"):
        set_pause(tmp_path / "state" / "paused.json", PAUSE)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_users_switch_is_refused_with_who_may(tmp_path: Path) -> None:
    folder = Path(f"/tmp/rp-pause-{os.getpid()}")
    folder.mkdir(mode=0o755)
    set_pause(folder / "paused.json", PAUSE)
    os.seteuid(65534)
    try:
        with pytest.raises(NoPermission, match="cannot unpause"):
            lift_pause(folder / "paused.json", "machine")
    finally:
        os.seteuid(0)
    assert lift_pause(folder / "paused.json", "machine") == PAUSE
    folder.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_home_that_is_another_users_pauses_nobody_and_a_closed_switch_in_ones_own_does() -> None:
    folder = Path(f"/tmp/rp-home-{os.getpid()}")
    folder.mkdir(mode=0o755)
    set_pause(folder / "paused.json", PAUSE)
    (folder / "paused.json").chmod(0o600)
    os.seteuid(65534)
    try:
        closed_file = read_pause(folder / "paused.json", "machine")
        os.seteuid(0)
        folder.chmod(0o700)
        os.seteuid(65534)
        closed_folder = read_pause(folder / "paused.json", "machine")
    finally:
        os.seteuid(0)
    lift_pause(folder / "paused.json", "machine")
    folder.rmdir()
    assert closed_file is not None
    assert closed_folder is None


def test_who_asks_is_the_person_behind_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "eve")
    assert who_asks() == f"eve@{os.uname().nodename}"
