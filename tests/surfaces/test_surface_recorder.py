"""The recorder itself: of the torch that is installed it makes the table that is kept, though that is from another platform's wheel."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from torch_surfaces import FOLDER

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from record_torch_surface import Folder, write

INSTALLED = version("torch").partition("+")[0]


@pytest.mark.timeout(60)
@pytest.mark.skipif(not (FOLDER / f"{INSTALLED}.json").exists(), reason="no table of the torch that is installed here")
def test_the_table_of_the_installed_torch_is_the_recorded_one(tmp_path: Path) -> None:
    import torch.version

    made = write(Folder(Path(torch.version.__file__).parents[1]), tmp_path)
    assert json.loads(made.read_text()) == json.loads((FOLDER / made.name).read_text())
