"""A real slurmd runs the Prolog and the Epilog: what it tells them is the word that later Prologs go by."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "schedulers"))
from slurm_cluster import Cluster, why_not

import rankpatrol
from rankpatrol.orphans.ended_here import EndedHere, EndedJob

PLAYER = Path(__file__).with_name("slurm_player.py")
SCRIPT = f"""#!/bin/bash
export PYTHONPATH={Path(rankpatrol.__file__).parents[1]}
exec {sys.executable} {PLAYER} {{folder}} --job "$SLURM_JOB_ID" --{{when}}
"""

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if (reason := why_not()) is not None:
        pytest.skip(f"no Slurm cluster: {reason}")
    for when in ("prolog", "epilog"):
        (tmp_path / when).write_text(SCRIPT.format(folder=tmp_path, when=when))
        (tmp_path / when).chmod(0o755)
    base = Path(tempfile.mkdtemp(prefix="rp-slurm-", dir="/tmp"))  # munge's socket must fit into 107 bytes (unix(7))
    made = Cluster(base, nodes=1, more=f"Prolog={tmp_path}/prolog\nEpilog={tmp_path}/epilog")
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(base, ignore_errors=True)


def test_slurmds_own_epilog_is_remembered_and_drains_nothing(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("sleep 0.1")
    cluster.await_state(job, "COMPLETED")
    cluster._wait(lambda: cluster.slurm("sinfo", "-h", "-o", "%T") == "idle", 20, "the node to be free again")
    assert (tmp_path / "codes").read_text().splitlines() == ["--prolog 0 None", "--epilog 0 None"]
    ended = msgspec.json.decode((tmp_path / f"state/ended-jobs/{job}.json").read_bytes(), type=EndedJob)
    assert (ended.job, ended.uid) == (job, 0)
    assert list(EndedHere(tmp_path / "state/ended-jobs").words(frozenset({job}))) == [job]
