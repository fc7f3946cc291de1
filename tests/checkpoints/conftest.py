"""Checkpoints written once by the real torch.save, and copies to spoil."""

from pathlib import Path
from typing import Any

import pytest
from spoiled_checkpoints import Check, every_dtype

from rankpatrol.checkpoints.report import CheckpointReport
from rankpatrol.checkpoints.verifier import Verifier


def a_training_state() -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 12)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 120}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of sound checkpoints."""
    import torch

    folder = tmp_path_factory.mktemp("saved")
    state = a_training_state()
    torch.save(state, folder / "state_120.pt")
    torch.save(every_dtype(), folder / "dtypes.pt")
    torch.save({}, folder / "nothing.pt")
    for protocol in (3, 4, 5):
        torch.save(state, folder / f"protocol{protocol}.pt", pickle_protocol=protocol)
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    (folder / "foreign.pt").write_bytes(b"no checkpoint at all")
    torch.serialization.set_crc32_options(False)
    torch.save(state, folder / "without_checksums.pt")
    torch.serialization.set_crc32_options(True)
    with torch.serialization.skip_data():
        torch.save(state, folder / "skipped_data.pt")
    return folder


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Judge bytes as the file `step_7.pt`."""

    def judge(data: bytes) -> CheckpointReport:
        path = tmp_path / "step_7.pt"
        path.write_bytes(data)
        return Verifier().verify(path)

    return judge


@pytest.fixture(autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands remember stays out of the user's own state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
