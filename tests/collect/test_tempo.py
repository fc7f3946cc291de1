"""How real processes get on."""

import os
import subprocess
import sys

import pytest

from rankpatrol.collect.tempo import Running, busy_cpu_s, doing_of, pressure_s, pressures_s, running_of
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.system.process import identify

SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"
READS = "import sys; print('ready', flush=True); sys.stdin.buffer.raw.read(1)"
COMPUTES = "print('ready', flush=True)\nwhile True: sum(range(1000))"


@pytest.fixture
def start():
    started = []

    def one(code):
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return identify(process.pid)

    yield one
    for process in started:
        process.kill()
        process.communicate()


def until(look, wanted):
    for _ in range(100_000):
        if (seen := look()) == wanted:
            return seen
    return seen


@pytest.mark.parametrize(("code", "wanted"), [(SLEEPS, "clock_nanosleep"), (READS, "read"), (COMPUTES, "running")])
def test_what_a_main_thread_is_at_is_told(start, code, wanted):
    process = start(code)
    assert until(lambda: doing_of(process), wanted) == wanted


def test_time_on_a_cpu_and_time_spent_waiting_for_one_only_grow(start):
    process = start(COMPUTES)
    first = running_of(process)
    assert isinstance(first, Running)
    for _ in range(1_000_000):
        now = running_of(process)
        if now.cpu_s > first.cpu_s + 0.02:
            break
    assert now.cpu_s > first.cpu_s
    assert now.delay_s >= first.delay_s


def test_two_that_share_one_cpu_wait_for_it(start):
    cpu = {min(os.sched_getaffinity(0))}
    processes = [start(COMPUTES), start(COMPUTES)]
    for process in processes:
        os.sched_setaffinity(process.pid, cpu)
    first = [running_of(process) for process in processes]
    for _ in range(1_000_000):
        now = [running_of(process) for process in processes]
        if all(after.delay_s > before.delay_s + 0.02 for before, after in zip(first, now, strict=True)):
            break
    assert all(after.delay_s > before.delay_s + 0.02 for before, after in zip(first, now, strict=True))


def test_of_a_process_that_is_gone_or_whose_pid_another_wears_nothing_is_told():
    us = identify(os.getpid())
    other = ProcessId(us.boot_id, us.pid, us.start_ticks + 1)
    for stranger in (other, ProcessId(us.boot_id, 1 << 22, 1)):
        assert isinstance(running_of(stranger), Missing)
        assert isinstance(doing_of(stranger), Missing)


def test_the_machine_is_read_from_the_kernels_own_words(tmp_path):
    (tmp_path / "stat").write_text("cpu  100 10 50 9000 800 1 2 3 50 0\ncpu0 1 2 3\n")
    assert busy_cpu_s(tmp_path / "stat") == 1.66
    (tmp_path / "cpu").write_text("some avg10=1.00 avg60=2.00 avg300=3.00 total=2500000\nfull avg10=0.00 total=0\n")
    assert pressure_s(tmp_path / "cpu") == 2.5
    assert pressures_s(tmp_path) == {"cpu": 2.5}


def test_a_kernel_without_pressure_says_nothing(tmp_path):
    (tmp_path / "odd").write_text("nothing\n")
    assert isinstance(pressure_s(tmp_path / "none"), Missing)
    assert isinstance(pressure_s(tmp_path / "odd"), Missing)
    assert isinstance(busy_cpu_s(tmp_path / "none"), Missing)
