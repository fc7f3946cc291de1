"""Scans made by hand: one process, the jobs' words and GPUs as the test wants them."""

from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.orphans.history import History, remember
from rankpatrol.orphans.prove import judge
from rankpatrol.orphans.records import (
    INITIAL_PID_NAMESPACE,
    Environment,
    GpuProcess,
    GpuSeen,
    Home,
    HomeKind,
    JobState,
    JobWord,
    Judged,
    Policy,
    ProcessSeen,
    Scan,
)

NOW = 1_795_000_000.0
DEVICE = "/dev/nvidia0"
JOB = Home(HomeKind.JOB, "77")
POLICY = Policy()


def process(pid: int = 4711, **other) -> ProcessSeen:
    """A loader process of ended job 77 that holds GPU 0, unless told otherwise."""
    fields = {
        "id": ProcessId("boot", pid, pid * 10),
        "parent_pid": 1,
        "session_id": 4000,
        "uid": 1001,
        "name": "pt_data_worker",
        "state": "S",
        "threads": 1,
        "blocked_threads": 0,
        "kill_pending": False,
        "kernel_thread": False,
        "started_unix_s": NOW - 3000,
        "exe": "/usr/bin/python3.11",
        "wait_channel": "pipe_write",
        "home": JOB,
        "environment": Environment(job="77"),
        "devices": (DEVICE, "/dev/nvidiactl"),
    }
    return ProcessSeen(**{**fields, **other})


def word(job: str = "77", state: JobState = JobState.ENDED, **other) -> JobWord:
    fields = {
        "by": "Slurm (squeue)",
        "started_unix_s": NOW - 3600,
        "uid": 1001,
        "ended_unix_s": NOW - 600 if state is JobState.ENDED else None,
    }
    return JobWord(job=job, state=state, **{**fields, **other})


def gpu(*named: int, used_gib: float = 39.0, **other) -> GpuSeen:
    fields = {
        "index": 0,
        "uuid": "GPU-0",
        "name": "NVIDIA A100",
        "device": DEVICE,
        "total_bytes": 80 << 30,
        "used_bytes": int(used_gib * (1 << 30)),
        "busy_percent": 0,
        "processes": tuple(GpuProcess(pid, 1 << 30) for pid in named),
    }
    return GpuSeen(**{**fields, **other})


def scan(*processes: ProcessSeen, jobs=(), **other) -> Scan:
    fields = {
        "at_unix_s": NOW,
        "node": "node7",
        "pid_namespace": INITIAL_PID_NAMESPACE,
        "pid_max": 4194304,
        "us": frozenset({500, 400}),
        "living": frozenset({1, 400, 500, *(one.id.pid for one in processes)}),
        "gpus": Missing("no NVML"),
    }
    return Scan(processes=processes, jobs={one.job: one for one in jobs}, **{**fields, **other})


def after(one: Scan, scans: int = 2, policy: Policy = POLICY) -> tuple[Judged, ...]:
    """What is said of a scan once it was seen several times in a row."""
    history = History()
    for _ in range(scans):
        history = remember(history, one, idle_floor_bytes=policy.idle_floor_bytes)
    return judge(one, history, policy)
