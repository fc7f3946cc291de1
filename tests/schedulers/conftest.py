import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sites import LocalSite, Site, SlurmSite
from slurm_cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for all tests of a run; it takes a second or two."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no Slurm cluster: {reason}")
    # Munge's socket must fit into 107 bytes (unix(7)): pytest's own folders may not.
    base = Path(tempfile.mkdtemp(prefix="rp-slurm-", dir="/tmp"))
    made = Cluster(base)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def slurm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, reached by every command that this test starts."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    return cluster


@pytest.fixture(params=["local", "slurm"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Wherever jobs run: what follows holds for each of them."""
    made: Site = LocalSite(tmp_path) if request.param == "local" else SlurmSite(request.getfixturevalue("slurm"))
    with made:
        yield made
