import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_api import ApiServer
from kubelet import Kubelet, Wire, cgroup_root
from real_api import RealApi
from real_api import why_not as why_no_real_api
from sites import KubernetesSite, LocalSite, Site, SlurmSite
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


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The small API server, and a kubeconfig that leads every client of this test to it."""
    folder = tmp_path / "api"
    folder.mkdir()
    with ApiServer(folder) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig()))
        yield made


@pytest.fixture
def kubernetes(api: ApiServer, tmp_path: Path) -> Iterator[KubernetesSite]:
    """That server, with somebody who runs its pods."""
    if cgroup_root() is None:
        pytest.skip("no pods can be run here: this user may not make cgroups")
    wire = Wire(api.url, "admin", api.ca)
    with Kubelet(wire, "team", "node-1", tmp_path / "api"), KubernetesSite(wire, tmp_path / "api") as made:
        yield made


@pytest.fixture(scope="session")
def real_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    """A real API server, for all tests of a run; it takes some ten seconds."""
    if (reason := why_no_real_api()) is not None:
        pytest.skip(f"no real API server of Kubernetes: {reason}")
    with RealApi(tmp_path_factory.mktemp("real-api")) as made:
        yield made


@pytest.fixture
def real_kubernetes(real_api: RealApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesSite]:
    """That server, with somebody who runs its pods. It is of 1.20, before Jobs could be suspended."""
    if cgroup_root() is None:
        pytest.skip("no pods can be run here: this user may not make cgroups")
    monkeypatch.setenv("KUBECONFIG", str(real_api.kubeconfig()))
    with Kubelet(real_api.wire, "team", "node-1", tmp_path), KubernetesSite(real_api.wire, tmp_path, knows_suspend=False) as made:
        yield made


@pytest.fixture(params=["local", "slurm", "kubernetes", "real-kubernetes"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Wherever jobs run: what follows holds for each of them."""
    if request.param.endswith("kubernetes"):
        yield request.getfixturevalue(request.param.replace("-", "_"))
        return
    made: Site = LocalSite(tmp_path) if request.param == "local" else SlurmSite(request.getfixturevalue("slurm"))
    with made:
        yield made
