"""Places where jobs run, for the contract that all schedulers keep: this machine alone, a Slurm cluster, Kubernetes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kubelet import Wire
from slurm_cluster import Cluster

from rankpatrol.core.jobs import JobState
from rankpatrol.launch.rundir import RunDir
from rankpatrol.schedulers.kubernetes import KubernetesJobs, KubernetesWaits
from rankpatrol.schedulers.kubernetes_client import KubernetesClient
from rankpatrol.schedulers.local_jobs import LocalJobs
from rankpatrol.schedulers.port import JobScheduler
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient
from rankpatrol.system.clock import SystemClock

STANDIN = Path(__file__).parent.parent / "launch" / "standin_launcher.py"
SLEEPER = "import time\nfor _ in range(600):\n    time.sleep(0.1)\n"


class Site(Protocol):
    """Starts jobs that a test may end. What is left of them goes with it."""

    scheduler: JobScheduler
    unknown: str
    counts_restarts: bool
    pythons: int  # how many processes of Python a job has that is up
    release: str  # how a person lets a held job start; empty where jobs cannot be held

    def start(self) -> str: ...

    def finished(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None: ...


class LocalSite:
    """Jobs of `rankpatrol run` with two ranks each."""

    unknown = "no-such-job"
    pythons = 2
    counts_restarts = True
    release = ""

    def __init__(self, folder: Path) -> None:
        self._folder, self._running = folder, []
        self.scheduler = LocalJobs(SystemClock(), folder)

    def start(self) -> str:
        (self._folder / "sleeper.py").write_text(SLEEPER)
        name = f"job{len(self._running)}"
        self._run(name, sys.executable, str(STANDIN), "2", str(self._folder / "sleeper.py"))
        wait_for(lambda: len(self._ranks(name)) == 2, 20)
        return name

    def finished(self) -> str:
        name = f"job{len(self._running)}"
        self._run(name, "true").wait(20)
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(20)

    def _run(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", str(self._folder / name), "--no-probe", *command]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        self._running.append(process)
        return process

    def _ranks(self, name: str) -> tuple[object, ...]:
        run_dir = self.scheduler.run_dir(name)
        return run_dir.places() if isinstance(run_dir, RunDir) else ()


class SlurmSite:
    """Batch jobs of one step on one node."""

    unknown = "99999"
    pythons = 2
    counts_restarts = True
    release = "scontrol release "

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self._jobs = cluster, []
        self.scheduler = SlurmJobs(SlurmClient(), SystemClock())

    def start(self) -> str:
        sleeper = self.cluster.base / "sleeper.py"
        sleeper.write_text(SLEEPER)
        self._jobs.append(self.cluster.submit(f"srun -n2 --kill-on-bad-exit=1 {sys.executable} {sleeper}", "-N1", "-n2", "--requeue"))
        wait_for(lambda: any(step.startswith(f"{self._jobs[-1]}.0 ") for step in self.scheduler.describe(self._jobs[-1]).steps), 20)
        return self._jobs[-1]

    def finished(self) -> str:
        job = self.cluster.queue("true", "-N1")
        wait_for(lambda: self.scheduler.describe(job).state is JobState.ENDED, 20)
        return job

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._jobs:
            self.cluster.slurm("scancel", *self._jobs, check=False)


class KubernetesSite:
    """Jobs of one pod with two ranks. KUBECONFIG leads to the API. A Job that is suspended and resumed counts no restart."""

    unknown = "k8s:team/job/no-such-job"
    counts_restarts = False
    pythons = 3  # its launcher is in the pod as well

    def __init__(self, wire: Wire, folder: Path, *, knows_suspend: bool = True) -> None:
        self.wire, self._folder, self._names = wire, folder, []
        self.release = """--type=merge -p '{"spec":{"suspend":false}}'""" if knows_suspend else ""
        waits = KubernetesWaits(gone_s=40, taken_s=20, poll_s=0.1)
        self.scheduler = KubernetesJobs(KubernetesClient(), SystemClock(), waits)

    def start(self) -> str:
        sleeper = self._folder / "sleeper.py"
        sleeper.write_text(SLEEPER)
        job = self.make([sys.executable, str(STANDIN), "2", str(sleeper)])
        wait_for(lambda: self.scheduler.describe(job).state is JobState.RUNNING, 20)
        return job

    def finished(self) -> str:
        job = self.make(["true"])
        wait_for(lambda: self.scheduler.describe(job).state is JobState.ENDED, 20)
        return job

    def make(self, command: list[str], **spec: object) -> str:
        name = f"train-{len(self._names)}-{os.getpid()}"
        self._names.append(name)
        pod = {"restartPolicy": "Never", "containers": [{"name": "train", "image": "none", "command": command}]}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {"spec": pod}, **spec}}
        code, told = self.wire("POST", "/apis/batch/v1/namespaces/team/jobs", job)
        assert code == 201, told
        return f"k8s:team/job/{name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self.wire("DELETE", f"/apis/batch/v1/namespaces/team/jobs/{name}", {"propagationPolicy": "Background"})


def wait_for(come_true, within_s: float) -> None:
    until = time.monotonic() + within_s
    while not come_true():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)
