"""The scene that the documentation shows: an orphan, a job that runs, a person's tmux. VICTIM CGROUP FOLDER; prints the command's words.

In pid, mount and UTS namespaces of its own, as root: process numbers, the node's name and /dev are the scene's.
"""

import functools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from rankpatrol.cli import orphans as command
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE
from rankpatrol.orphans.scan import Scanner

VICTIM, CGROUP, FOLDER = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
GIB = 1 << 30
# pid, program, user, job in its environment, cgroup, GPU
PEOPLE = [
    (19872, "pt_data_worker", 1001, "8123", "slurmstepd.scope/job_8123/step_0/user/task_0", 0),
    (19875, "python", 1002, "8130", "slurmstepd.scope/job_8130/step_0/user/task_0", 2),
    (19876, "tmux", 1001, "8123", "user.slice/user-1001.slice/session-3.scope", 1),
]
GPUS = [39936, 41472, 68608]  # MiB in use
SQUEUE = """#!/bin/sh
case "$*" in
  *--jobs=8123*) echo "8123|COMPLETED|1001|1000|$(($(date +%s) - 2460))" ;;
  *--jobs=8130*) echo "8130|RUNNING|1002|1000|Unknown" ;;
esac
"""


def set_the_stage() -> None:
    socket.sethostname("node7")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
    for name, minor in (("null", 3), ("urandom", 9)):
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(1, minor))
    for number in range(len(GPUS)):
        Path(f"/dev/nvidia{number}").touch()
        Path(f"/dev/nvidia{number}").chmod(0o666)
    (FOLDER / "squeue").write_text(SQUEUE)
    (FOLDER / "squeue").chmod(0o755)
    os.environ["PATH"] = f"{FOLDER}{os.pathsep}{os.environ['PATH']}"
    gpus = [f"gpu 0 {0x17 + number:x} 0 {80 * GIB} {used << 20} 0 -1 0" for number, used in enumerate(GPUS)]
    named = [f"proc 2 19875 {68608 << 20}", f"proc 1 19876 {512 << 20}"]
    (FOLDER / "nvml.txt").write_text("\n".join(gpus + named) + "\n")
    os.environ["NVML_STUB_FILE"] = str(FOLDER / "nvml.txt")


def bring_on(reader: int, writer: int) -> None:
    for pid, name, uid, job, home, gpu in PEOPLE:
        program = FOLDER / name
        program.write_bytes(VICTIM.read_bytes())
        program.chmod(0o755)
        procs = CGROUP / home / "cgroup.procs"
        procs.parent.mkdir(parents=True)
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        words = [str(program), str(FOLDER / f"log.{pid}"), str(procs), str(uid), "deaf", str(writer), f"/dev/nvidia{gpu}"]
        assert os.posix_spawn(program, words, {"SLURM_JOB_ID": job}) == pid
        assert os.read(reader, 1) == b"r"


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    set_the_stage()
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    bring_on(reader, writer)
    command.Scanner = functools.partial(Scanner, namespace=lambda: INITIAL_PID_NAMESPACE)
    os.environ["RANKPATROL_STATE_DIR"] = str(FOLDER / "state")
    command.orphans.main([], standalone_mode=False)
    sys.stdout.flush()


main()
