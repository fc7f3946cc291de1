"""A real Slurm cluster of some nodes on this one machine, ready in about a second: no systemd, nothing outside its folder.

All daemons are children of whoever starts it, and are killed with it. With `hosts` each node is a host of hosts.sh with a network, a host
name and pids of its own; else all nodes share those of this machine.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HOSTS = Path(__file__).with_name("hosts.sh")
INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
NEEDS = ("slurmctld", "slurmd", "munged", "sbatch", "setpriv")


def why_not() -> str | None:
    """Why there can be no cluster here, or None where there can."""
    if missing := [name for name in NEEDS if shutil.which(name) is None]:
        return f"{', '.join(missing)} not installed ({INSTALL})"
    return None if os.getuid() == 0 else "a Slurm cluster of one machine needs root"


class Cluster:
    """One cluster. `track`: cgroup, or linuxproc, which loses sight of re-parented processes as real sites with it do.

    `task`: none, or affinity, which binds as `--cpu-bind` says. `more`: lines of slurm.conf, in which
    BASE is the cluster's own folder.
    """

    def __init__(
        self,
        base: Path,
        *,
        nodes: int = 4,
        track: str = "cgroup",
        kill_wait_s: int = 3,
        hosts: bool = False,
        task: str = "none",
        more: str = "",
    ) -> None:
        self.base, self.nodes, self.kill_wait_s, self.hosts, self.task = base, nodes, kill_wait_s, hosts, task
        self.more = more.replace("BASE", str(base))
        self.track = track if Path("/sys/fs/cgroup/freezer").is_dir() else "linuxproc"
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        # Cgroups are named by node, for the whole machine: two clusters side by side must not share a name.
        self.prefix = "n" if hosts else f"t{os.getpid()}n"
        self.environment = {**os.environ, "SLURM_CONF": str(base / "slurm.conf"), "FIX": f"rp{os.getpid()}", "DIR": str(base / "hosts")}

    def node(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def up(self) -> None:
        for folder in ("state", "log", "munge", "dev", *(f"spool/{self.node(n)}" for n in self._numbers())):
            (self.base / folder).mkdir(parents=True)
        self.base.chmod(0o755)
        (self.base / "munge").chmod(0o711)
        (self.base / "munge" / "key").write_bytes(os.urandom(1024))
        (self.base / "munge" / "key").chmod(0o600)
        self._configure()
        munge = self.base / "munge"
        files = (f"--socket={munge}/sock", f"--key-file={munge}/key", f"--pid-file={munge}/pid", f"--log-file={munge}/log")
        self._start("munged", "munged", "-F", *files, f"--seed-file={munge}/seed", "--num-threads=2")
        self._wait(lambda: self.call("munge", "-S", f"{munge}/sock", "-n", check=False).returncode == 0, 10, "munged")
        if self.hosts:
            self.call(str(HOSTS), "up", str(self.nodes))
        self._start("slurmctld", *self.on("hub"), "slurmctld", "-D")
        for number in self._numbers():
            name = () if self.hosts else ("-N", self.node(number))
            self._start(f"slurmd{number}", *self.on(f"n{number}"), "slurmd", "-D", *name)
        self._wait(lambda: self.slurm("sinfo", "-h", "-N", "-o", "%T", check=False).split() == ["idle"] * self.nodes, 30, "all nodes")

    def down(self) -> None:
        for process in self.started.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self.slurm("scancel", "-u", "root", check=False)
            self._wait(lambda: not self.slurm("squeue", "-h", check=False), 10, "the jobs' end")
        for process in reversed(self.started.values()):
            process.terminate()
        for process in self.started.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._end_left_overs()
        if self.hosts:
            self.call(str(HOSTS), "down", check=False)
        for number in self._numbers():
            for controller in ("freezer", "cpuset", "memory", "cpuacct", "devices"):
                root = Path(f"/sys/fs/cgroup/{controller}/slurm_{self.node(number)}")
                for folder in [*sorted(root.rglob("*/"), reverse=True), root]:
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    def call(self, *words: str, check: bool = True, timeout_s: float = 30) -> "subprocess.CompletedProcess[str]":
        """One command, with this cluster's settings."""
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=check)

    def slurm(self, *words: str, check: bool = True, timeout_s: float = 30) -> str:
        """What one of Slurm's commands prints, run where the cluster can be reached."""
        done = self.call(*self.on("hub"), *words, check=False, timeout_s=timeout_s)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script; its job id, once it runs."""
        job = self.queue(script, *options)
        self._wait(lambda: self.state(job) == "RUNNING", 30, f"job {job} to run")
        return job

    def queue(self, script: str, *options: str) -> str:
        path = self.base / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.slurm("sbatch", "--parsable", "-o", str(self.base / "log" / "job-%j.out"), *options, str(path))

    def state(self, job: str) -> str:
        return self.slurm("squeue", "-h", "-a", "-t", "all", "-j", job, "-o", "%T", check=False)

    def output(self, job: str) -> str:
        """What the job has printed so far."""
        path = self.base / "log" / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def await_state(self, job: str, *states: str, within_s: float = 40) -> None:
        self._wait(lambda: self.state(job) in states, within_s, f"job {job} to be {' or '.join(states)}")

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """A daemon that is there and does not answer."""
        process = self.started[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def on(self, host: str) -> tuple[str, ...]:
        """What to put before a command to have it run on that host."""
        return (str(HOSTS), "exec", host) if self.hosts else ()

    def _end_left_overs(self) -> None:
        """A slurmstepd outlives its slurmd, and an orphan both; each was started with this cluster's settings, and nobody else is."""
        ours = f"SLURM_CONF={self.base}/slurm.conf".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(int(entry.name))
                try:
                    if ours in (entry / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)

    def _numbers(self) -> Sequence[int]:
        return range(1, self.nodes + 1)

    def _start(self, name: str, *words: str) -> None:
        with (self.base / "log" / f"{name}.out").open("wb") as out:
            command = ["setpriv", "--pdeathsig", "KILL", *words]
            self.started[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _wait(self, come_true, within_s: float, what: str) -> None:
        until = time.monotonic() + within_s
        while not come_true():
            assert time.monotonic() < until, f"{what}: not within {within_s:g} s, see {self.base}/log"
            time.sleep(0.1)

    def _configure(self) -> None:
        host = socket.gethostname()
        if self.hosts:
            control, port = "hub(10.88.0.1)", 16817
            nodes = f"NodeName=n[1-{self.nodes}] NodeAddr=10.88.0.[11-{10 + self.nodes}] Port=16818"
        else:
            port, *others = _free_ports(1 + self.nodes)
            control = f"{host}(127.0.0.1)"
            nodes = "\n".join(
                f"NodeName={self.node(number)} NodeHostname={host} NodeAddr=127.0.0.1 Port={other} CPUs=4 RealMemory=2000 State=UNKNOWN"
                for number, other in zip(self._numbers(), others, strict=True)
            )
        # Two clusters on one machine must not give the same job ids: its processes are known by them.
        # cred_expire is the delay before a requeued job may start: 120 s as shipped, 5 is the least that is allowed.
        settings = f"""ClusterName=fix
SlurmctldHost={control}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={self.base}/munge/sock,cred_expire=5
StateSaveLocation={self.base}/state
SlurmdSpoolDir={self.base}/spool/%n
SlurmctldPidFile={self.base}/slurmctld.pid
SlurmdPidFile={self.base}/slurmd.%n.pid
SlurmctldLogFile={self.base}/log/slurmctld.log
SlurmdLogFile={self.base}/log/slurmd.%n.log
ProctrackType=proctrack/{self.track}
TaskPlugin=task/{self.task}
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
FirstJobId={100_000 + os.getpid() % 10_000 * 100}
JobRequeue=1
ReturnToService=2
KillWait={self.kill_wait_s}
SlurmdTimeout=10
MinJobAge=300
MailProg=/bin/true
{nodes}{" CPUs=4 RealMemory=2000 State=UNKNOWN" if self.hosts else ""}
{self.more}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
        (self.base / "slurm.conf").write_text(settings)
        (self.base / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainCores=no\nConstrainRAMSpace=no\n"
        )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
