"""GPUs as the driver tells of them, from a stand-in for its library that answers from a file."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rankpatrol.collect.gpus import sample_gpus
from rankpatrol.core.records import Missing

STUB = Path(__file__).parents[1] / "data/affinity/nvml_stub.c"
# What the stand-in lacks: GPU 0 is hot and held back, GPU 1 does not tell its clocks.
MORE = """
#include "%s"
int nvmlDeviceGetPowerUsage(H h, u32 *n) { DEV; *n = 312500; return OK; }
int nvmlDeviceGetClockInfo(H h, u32 kind, u32 *n) { DEV; if (i) return NOSUPPORT; *n = kind == 1 ? 1035 : 0; return OK; }
int nvmlDeviceGetMaxClockInfo(H h, u32 kind, u32 *n) { DEV; *n = kind == 1 ? 1980 : 0; return OK; }
int nvmlDeviceGetTemperature(H h, u32 kind, u32 *n) { DEV; *n = kind == 0 ? 91 : 0; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(H h, u64 *n) { DEV; *n = i ? 1 : 0x41; return OK; }
int nvmlDeviceGetTotalEccErrors(H h, u32 kind, u32 since, u64 *n) { DEV; *n = kind == 1 && since == 0 ? 2 : 9; return OK; }
"""
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="the stand-in needs a C compiler")


def built(folder, text):
    source, made = folder / "stub.c", folder / "libnvidia-ml.so.1"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", made, source], check=True, timeout=15)
    return str(made)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("new"), MORE % STUB)


@pytest.fixture(scope="module")
def old_library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("old"), STUB.read_text())


@pytest.fixture
def world(tmp_path, monkeypatch):
    path = tmp_path / "gpus.txt"
    path.write_text("gpu 0 18 0 1000 400 97 0 f\ngpu 0 9d 0 1000 10 0 1 f0\nproc 0 4242 100\n")
    monkeypatch.setenv("NVML_STUB_FILE", str(path))
    return path


def test_what_each_gpu_does_is_told(library, world):
    hot, idle = sample_gpus(library=library)
    assert (hot.address, hot.busy_ratio, hot.memory_used_bytes, hot.memory_bytes) == ("0000:18:00.0", 0.97, 400, 1000)
    assert (hot.power_w, hot.sm_clock_mhz, hot.sm_clock_most_mhz, hot.temperature_c) == (312.5, 1035, 1980, 91)
    assert (hot.slowed_by, hot.uncorrected_errors, hot.pids) == (("hardware thermal slowdown",), 2, (4242,))
    assert idle.slowed_by == ()
    assert idle.sm_clock_mhz == Missing("nvmlDeviceGetClockInfo: NVML error 3")


def test_an_old_driver_tells_less_and_says_so(old_library, world):
    first, _ = sample_gpus(library=old_library)
    assert first.busy_ratio == 0.97
    assert first.power_w == Missing("this NVML has no nvmlDeviceGetPowerUsage")


def test_a_lost_gpu_is_told_by_its_errors(library, world):
    world.write_text(world.read_text() + "fail nvmlDeviceGetUtilizationRates 15\n")
    assert sample_gpus(library=library)[0].busy_ratio == Missing("nvmlDeviceGetUtilizationRates: NVML error 15")


def test_a_driver_that_does_not_start_or_never_answers_is_left_behind(library, world):
    world.write_text("fail nvmlInit_v2 9\n")
    assert sample_gpus(library=library) == Missing("NVML does not start (error 9)")
    world.unlink()
    os.mkfifo(world)
    assert sample_gpus(library=library, deadline_s=0.8) == Missing("NVML did not answer within 0.8 s")


def test_without_the_library_that_is_told():
    assert isinstance(sample_gpus(library="libthere-is-none.so"), Missing)
