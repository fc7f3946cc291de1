"""One folder for what outlives a job: pauses, lemons, the ledger of checkpoints, leases, evidence of orphans."""

import os
from pathlib import Path

import pytest

from rankpatrol.agent.leases import slurm_lease
from rankpatrol.cli.checkpoints import _own_ledger
from rankpatrol.launch.pauses import machine_switch
from rankpatrol.lemons.memory import lemon_path
from rankpatrol.orphans.state import state_folder
from rankpatrol.system.state_dir import state_dir


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch):
    for name in ("RANKPATROL_STATE_DIR", "XDG_STATE_HOME", "RANKPATROL_LEMONS", "RANKPATROL_LEASES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"RANKPATROL_STATE_DIR": "/named", "XDG_STATE_HOME": "/xdg"}, "/named"),
        ({"RANKPATROL_STATE_DIR": "", "XDG_STATE_HOME": "/xdg"}, "/xdg/rankpatrol"),
        ({"XDG_STATE_HOME": "no/absolute/path"}, "/home/ada/.local/state/rankpatrol"),
        ({}, "/home/ada/.local/state/rankpatrol"),
    ],
)
def test_everything_lies_in_one_folder(monkeypatch, variables, where):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert state_dir() == Path(where)
    assert machine_switch().parent == Path(where)
    assert lemon_path() == Path(where) / "lemons.sqlite3"
    assert _own_ledger() == Path(where) / "checkpoints.json"
    assert slurm_lease("7") == Path(where) / "leases" / "slurm-7"
    assert state_folder() == Path(where)


def test_root_without_a_word_keeps_evidence_where_an_epilog_can(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_folder() == Path("/var/lib/rankpatrol")
    monkeypatch.setenv("RANKPATROL_STATE_DIR", "/named")
    assert state_folder() == Path("/named")
