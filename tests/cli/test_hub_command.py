"""`rankpatrol hub init-keys`."""

import json

import pytest

from rankpatrol.cli.main import call
from rankpatrol.core.errors import ExitCode


def test_init_keys_says_what_goes_where(tmp_path, capsys):
    folder = tmp_path / "keys"
    assert call(["hub", "init-keys", str(folder), "--nodes", "n[1-2],gpu-07", "--server", "hub.cluster"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "5 certificates made, 0 kept; the broker knows 3 nodes" in said
    assert f"nats-server --config {folder}/nats.conf" in said
    assert "known as hub.cluster" in said
    assert "copy" in said
    assert sorted(path.name for path in (folder / "nodes").iterdir()) == ["gpu-07", "n1", "n2"]


def test_init_keys_in_json_is_one_document(tmp_path, capsys):
    assert call(["hub", "init-keys", str(tmp_path), "--nodes", "n1", "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(tmp_path)
    assert said["made"] == ["server", "hub", "nodes/n1"]
    assert said["known"] == ["n1"]
    assert "127.0.0.1" in said["hosts"]


@pytest.mark.parametrize("nodes", ["", "a b", "hub", "../x", "n[1-"])
def test_what_names_no_node_is_wrong_usage(tmp_path, capsys, nodes):
    assert call(["hub", "init-keys", str(tmp_path / "keys"), "--nodes", nodes]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("rankpatrol: ")
    assert not (tmp_path / "keys").exists()


def test_a_folder_that_refuses_is_bad_input(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert call(["hub", "init-keys", str(tmp_path / "file"), "--nodes", "n1"]) == ExitCode.BAD_INPUT
    assert "keys cannot be written" in capsys.readouterr().err
