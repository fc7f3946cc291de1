"""Bad checkpoints before an attempt whose script chooses by itself."""

import msgspec
import pytest
import torch

from rankpatrol.agent.setting_aside import SettingAside
from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.records import Missing
from rankpatrol.launch.rundir import JobSpec

SPEC = JobSpec(
    job="job", job_dir="/job", command=("torchrun", "train.py"), policy="recover", patience_s=20.0, checkpoints="/ckpt", started_unix_s=0.0
)


class Told:
    """Stands for the journal, and for the voice."""

    def __init__(self):
        self.events, self.said = [], []

    def tell(self, kind, attempt, **fields):
        self.events.append((kind, attempt, fields))

    def say(self, what, style):
        self.said.append((style, what))


@pytest.fixture
def checkpoints(tmp_path):
    """Two checkpoints, of which the newer one is cut in half."""
    for step in (10, 20):
        torch.save({"step": step, "w": torch.zeros(1000)}, tmp_path / f"step_{step:06d}.pt")
    newest = tmp_path / "step_000020.pt"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    return tmp_path


def put(spec, selection):
    told = Told()
    SettingAside(spec, told, told.say, lambda: 4e9).put(1, selection, unchanged_for_s=0.0)
    return told


def test_a_script_that_looks_for_itself_does_not_find_the_bad_one(checkpoints):
    told = put(SPEC, newest_good(checkpoints, Verifier()))
    assert [path.name for path in checkpoints.glob("*.pt")] == ["step_000010.pt"]
    assert (checkpoints / ".quarantined" / "step_000020.pt").exists()
    assert [(kind, attempt) for kind, attempt, _ in told.events] == [("checkpoint_quarantined", 1)]


@pytest.mark.parametrize(
    "changes", [{"policy": "observe"}, {"command": ("torchrun", "train.py", "{checkpoint}")}, {"attached": True}, {"checkpoints": None}]
)
def test_nothing_is_renamed_where_that_is_not_ours_to_do(checkpoints, changes):
    told = put(msgspec.structs.replace(SPEC, **changes), newest_good(checkpoints, Verifier()))
    assert len(list(checkpoints.glob("*.pt"))) == 2
    assert told.events == []


def test_what_could_not_be_looked_at_is_left_alone():
    assert put(SPEC, Missing("the file system does not answer")).said == []
