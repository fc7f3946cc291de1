"""The driver's word, from a stand-in for its library that answers from a file."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from machines import SILENT

from rankpatrol.affinity import binder, nvml
from rankpatrol.affinity.kernel import Held
from rankpatrol.affinity.machine import Witness
from rankpatrol.affinity.plan import Want

STUB = Path(__file__).parents[1] / "data/affinity/nvml_stub.c"
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="the stand-in needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", made, STUB], check=True, timeout=15)
    return str(made)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gpus.txt"
    monkeypatch.setenv("NVML_STUB_FILE", str(path))
    return path


def test_the_driver_is_heard_in_sysfss_words(library: str, world: Path) -> None:
    world.write_text("gpu 0 18 0 1 0 0 0 f\ngpu 10000 9d 0 1 0 0 1 f0\n")
    said = nvml.ask(library=library)
    assert said.witness == {
        "0000:18:00.0": Witness(frozenset(range(4)), frozenset([0])),
        "10000:9d:00.0": Witness(frozenset(range(4, 8)), frozenset([1])),
    }
    assert said.problem is None


def test_the_processes_on_each_gpu_are_told(library: str, world: Path) -> None:
    world.write_text("gpu 0 18 0 1 0 0 0 f\ngpu 0 9d 0 1 0 0 1 f0\nproc 1 4242 100\nproc 1 4243 100\n")
    assert nvml.ask(library=library).users == {"0000:9d:00.0": frozenset([4242, 4243])}


def test_a_driver_that_knows_no_node_says_nothing_of_it(library: str, world: Path) -> None:
    world.write_text("gpu 0 18 0 1 0 0 -1 0\n")
    assert nvml.ask(library=library).witness == {"0000:18:00.0": Witness()}


def test_a_driver_that_does_not_start_is_told(library: str, world: Path) -> None:
    world.write_text("fail nvmlInit_v2 9\n")
    assert nvml.ask(library=library) == nvml.DriverWord({}, {}, "NVML does not start (error 9)")


def test_a_driver_that_never_answers_is_left_behind(library: str, world: Path) -> None:
    os.mkfifo(world)
    assert nvml.ask(library=library, deadline_s=0.3).problem == "NVML did not answer within 0.3 s"


def test_without_the_library_that_is_told() -> None:
    assert nvml.ask(library="libthere-is-none.so").problem == "there is no NVML here"


def test_mig_needs_calls_that_an_old_driver_lacks(library: str, world: Path) -> None:
    world.write_text("gpu 0 18 0 1 0 0 0 f\n")
    said = nvml.ask(["MIG-1"], library=library)
    assert (list(said.witness), said.mig) == (["0000:18:00.0"], {})
    assert "nvmlDeviceGetHandleByUUID" in (said.problem or "")


def test_where_the_firmware_is_silent_the_driver_decides(library: str, world: Path, tmp_path: Path) -> None:
    world.write_text("".join(f"gpu 0 {card.address[5:7]} 0 1 0 0 {at // 2} 0\n" for at, card in enumerate(SILENT.cards)))
    environments = [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "4"} for rank in range(4)]
    ground = binder.survey(environments, SILENT.write(tmp_path / "machine"), library=library)
    made = binder.plan_job(environments, Held(SILENT.cpus, frozenset([0, 1]), 0), Want(), ground)
    assert [one.node for one in made] == [0, 0, 1, 1]


def test_the_driver_is_not_asked_where_the_firmware_has_spoken(world: Path, tmp_path: Path, library: str) -> None:
    os.mkfifo(world)
    from machines import TWO_SOCKETS

    assert binder.survey([{}], TWO_SOCKETS.write(tmp_path / "machine"), library=library).word == nvml.DriverWord({}, {})
