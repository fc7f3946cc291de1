"""What the orphans' tests build and start: a victim in C, a stand-in for NVML, processes of their own."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from orphan_subjects import Victims

HERE = Path(__file__).parent
STUB = HERE.parent / "data" / "affinity" / "nvml_stub.c"


def build(source: Path, target: Path, *flags: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", *flags, "-o", target, source], check=True)
    return target


@pytest.fixture(scope="session")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("victim")
    folder.chmod(0o755)
    return build(HERE / "victim.c", folder / "victim", "-pthread")


@pytest.fixture(scope="session")
def build_nvml(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a stand-in for libnvidia-ml.so.1, built with the given flags."""
    pytest.importorskip("pynvml", reason="needs the extra: pip install '.[gpu]'")

    def make(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        build(STUB, folder / "libnvidia-ml.so.1", "-shared", "-fPIC", "-Wno-format-truncation", "-Wl,-soname,libnvidia-ml.so.1", *flags)
        return folder

    return make


@pytest.fixture
def victims(victim: Path, tmp_path: Path) -> Iterator[Victims]:
    made = Victims(victim, tmp_path)
    yield made
    made.end()
