"""`rankpatrol orphans …` in a pid namespace of its own, which it is made to take for the node's: CGROUP VICTIM FOLDER WORDS…

Starts an orphan of job 77 that is deaf to SIGTERM, and a loader of live job 80; prints the exit code, the output, and what the two heard.
WORDS may be those of several calls, one after another, with a `+` between them: the last one's output is printed. With --watch it goes on
until it is ended, and prints as the command does.
"""

import functools
import json
import os
import sys
from pathlib import Path

from click.testing import CliRunner

from rankpatrol.cli import orphans as command
from rankpatrol.orphans.reap import ReapRules
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE
from rankpatrol.orphans.scan import Scanner
from rankpatrol.system.process import identify, ticks_now


def main():
    cgroup, victim, folder, words = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    device = folder / "nvidia0"
    device.touch()
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    pids = {}
    for job in ("77", "80"):
        home = cgroup / "slurmstepd.scope" / f"job_{job}" / "step_0"
        home.mkdir(parents=True)
        log = str(folder / f"log.{job}")
        arguments = [victim, log, str(home / "cgroup.procs"), "0", "deaf", str(writer), str(device)]
        pids[job] = os.posix_spawn(victim, arguments, {"SLURM_JOB_ID": job})
        assert os.read(reader, 1) == b"r"
        began = identify(pids[job])
        while ticks_now() <= began.start_ticks:  # an Epilog's word is of what is older than its clock tick (10 ms)
            os.sched_yield()
    command.Scanner = functools.partial(Scanner, namespace=lambda: INITIAL_PID_NAMESPACE)
    command.ReapRules = functools.partial(ReapRules, term_s=0.2, kill_switches=(str(folder / "no-reap"),))
    os.environ["RANKPATROL_STATE_DIR"] = str(folder / "state")
    common = ["--device", str(device), "--every", "50ms"]
    if "--watch" in words:
        command.orphans.main([*words, *common], standalone_mode=False)
    codes = []
    for call in " ".join(words).split(" + "):
        done = CliRunner().invoke(command.orphans, [*call.split(), *common], standalone_mode=False)
        codes.append(done.return_value)
    alive = {job: lives(pid) for job, pid in pids.items()}
    heard = {job: (folder / f"log.{job}").read_text().split() for job in pids}
    said = {
        "code": codes[-1],
        "codes": codes,
        "output": done.output,
        "error": repr(done.exception),
        "alive": alive,
        "heard": heard,
        "pids": pids,
    }
    print(json.dumps(said))


def lives(pid: int) -> bool:
    """A process that is on its way out closes its files first, and is a zombie a moment later (do_exit in the kernel)."""
    exiting = 0x4  # PF_EXITING, in the ninth field of proc_pid_stat(5)
    flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    return not flags & exiting


main()
