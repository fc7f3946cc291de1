"""One scan, on real processes: whom it finds, in which order it reads, and what it says of itself."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from orphan_subjects import Victims

from rankpatrol.core.records import Missing
from rankpatrol.orphans.jobs import RunJobs
from rankpatrol.orphans.nvml import GpuWitness, ask_nvml
from rankpatrol.orphans.records import DEVICES, INITIAL_PID_NAMESPACE, GpuProcess, GpuSeen, ProcessSeen, Scan
from rankpatrol.orphans.scan import Scanner, device_patterns
from rankpatrol.system.process import identify


@pytest.fixture
def device(tmp_path: Path) -> Path:
    (tmp_path / "nvidia0").touch()
    return tmp_path / "nvidia0"


def scanner(device: Path, **other) -> Scanner:
    return Scanner(RunJobs(), devices=(f"{device.parent}/nvidia*",), **other)


def holders(seen: Scan) -> dict[int, ProcessSeen]:
    return {process.id.pid: process for process in seen.processes}


def test_whoever_has_a_device_open_is_found_with_all_that_is_asked_of_it(device: Path, victims: Victims) -> None:
    pid = victims.start(device, environment={"SLURM_JOB_ID": "77", "SECRET": "not read"})
    victims.start()
    found = holders(scanner(device).scan())
    assert list(found) == [pid]
    seen = found[pid]
    assert seen.id == identify(pid)
    assert seen.devices == (str(device),)
    assert seen.environment.job == "77"
    assert (seen.uid, seen.name, seen.state, seen.threads) == (os.geteuid(), "victim", "S", 1)
    assert abs(seen.started_unix_s - time.time()) < 30


def test_a_leader_that_ended_hides_nothing(device: Path, victims: Victims) -> None:
    pid = victims.start(device, how="headless", environment={"SLURM_JOB_ID": "77"})
    assert list(Path(f"/proc/{pid}/fd").iterdir()) == []
    seen = holders(scanner(device).scan())[pid]
    assert (seen.state, seen.threads, seen.devices) == ("Z", 2, (str(device),))
    assert seen.environment.job == "77"


def test_a_forked_child_keeps_the_device_of_its_dead_parent(device: Path) -> None:
    child = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    parent = f"import os, signal, sys; os.open('{device}', os.O_RDWR); os.fork() or exec({child!r}); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        assert holders(scanner(device).scan())[pid].devices == (str(device),)
    finally:
        os.kill(pid, 9)  # our own grandchild, which nobody else waits for
        process.stdout.close()


def test_a_vfork_parent_shows_d_state_and_its_memory_is_not_read(device: Path, victims: Victims) -> None:
    pid = victims.start(device, how="vfork", environment={"SLURM_JOB_ID": "77"})
    seen = holders(scanner(device).scan())[pid]
    assert seen.state == "D"
    assert isinstance(seen.environment, Missing)


def test_the_namespace_is_a_value_of_the_scan(device: Path) -> None:
    assert not scanner(device, namespace=lambda: "pid:[4026532000]").scan().initial_namespace
    assert scanner(device, namespace=lambda: INITIAL_PID_NAMESPACE).scan().initial_namespace


def test_a_living_process_that_only_nvml_names_is_looked_at(device: Path, victims: Victims) -> None:
    pid = victims.start()
    named = GpuSeen(
        index=0,
        uuid="",
        name="",
        device=str(device),
        total_bytes=1,
        used_bytes=1,
        busy_percent=0,
        processes=(GpuProcess(pid), GpuProcess(4194305)),
    )
    assert holders(scanner(device, gpus=lambda: (named,)).scan())[pid].devices == ()


def test_amd_and_ascend_are_found_as_well() -> None:
    assert device_patterns({}) == DEVICES
    assert device_patterns({"RANKPATROL_DEVICES": "/dev/x*:/dev/y"}) == ("/dev/x*", "/dev/y")


def test_an_nvml_that_never_answers_delays_nothing(device: Path) -> None:
    never = threading.Event()
    witness = GpuWitness(lambda: Missing("too late") if never.wait(60) else Missing("never"))
    began = time.monotonic()
    seen = scanner(device, gpus=witness.look).scan()
    assert time.monotonic() - began < 5
    assert "not answered" in seen.gpus.reason
    assert isinstance(witness.fresh(0.05), Missing)
    never.set()


def test_an_nvml_reader_over_its_deadline_is_ended(tmp_path: Path) -> None:
    answer = ask_nvml(["sleep", "60"], deadline_s=0.05)
    assert isinstance(answer, Missing)
    assert "not done after 0.05 s" in answer.reason


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    answers = tmp_path / "nvml.txt"
    monkeypatch.setenv("NVML_STUB_FILE", str(answers))
    return answers


TWO_GPUS = """gpu 0 18 0 85899345920 73014444032 97 0 ffff
gpu 0 9d 0 85899345920 524288000 0 1 ffff0000
proc 0 4242 72000000000
proc 0 999999 18446744073709551615
"""


def test_nvml_is_read_in_a_child(build_nvml, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build_nvml()))
    stub.write_text(TWO_GPUS)
    first, second = ask_nvml()
    assert (first.device, first.used_bytes, first.busy_percent) == ("/dev/nvidia0", 73014444032, 97)
    assert first.processes == (GpuProcess(4242, 72000000000), GpuProcess(999999, None))
    assert second.processes == ()


def test_what_one_call_refuses_is_missing_and_the_rest_stands(build_nvml, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build_nvml()))
    stub.write_text(TWO_GPUS + "fail nvmlDeviceGetComputeRunningProcesses_v3 4\nfail nvmlDeviceGetUtilizationRates 3\n")
    first = ask_nvml()[0]
    assert isinstance(first.processes, Missing)
    assert isinstance(first.busy_percent, Missing)
    assert first.used_bytes == 73014444032


def test_a_lost_driver_is_said(build_nvml, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build_nvml()))
    stub.write_text("fail nvmlInitWithFlags 9\n")
    assert re.match("NVML: ", ask_nvml().reason)


def test_the_records_of_driver_535_are_read_out_of_step(build_nvml, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build_nvml("-DSKEW_535")))
    stub.write_text(
        "gpu 0 18 0 85899345920 73014444032 97 0 ff\n" + "".join(f"proc 0 {pid} 18446744073709551615\n" for pid in range(1184, 1189))
    )
    assert {0, 4294967295} < {one.pid for one in ask_nvml()[0].processes}


def test_an_nvml_that_blocks_inside_a_call_is_abandoned(build_nvml, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build_nvml()))
    os.mkfifo(stub)
    assert "not done after 1 s" in ask_nvml(deadline_s=1.0).reason


def test_no_nvml_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask_nvml([sys.executable, "-P", "-S", "-c", "import sys; sys.modules['pynvml'] = None"])
    assert isinstance(answer, Missing)
