from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_subjects import Job

from rankpatrol.launch.rundir import RunDir


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    made = Job(RunDir.create(), job_dir)
    made.write()
    made.release(*range(5))
    yield made
    made.run_dir.remove()
