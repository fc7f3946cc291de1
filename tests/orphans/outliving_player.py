"""A job of `rankpatrol run` that ends well while a helper of its rank lives on: FOLDER TMPDIR. Its pid namespace passes for the node's.

Prints what `run` said, the helper, and what the patrol said of it: while the job ran, after its end, and after the release.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rankpatrol.orphans.jobs import AllJobs, RunJobs
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, reap
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE, Policy
from rankpatrol.orphans.scan import Scanner

FOLDER, TMPDIR = Path(sys.argv[1]), Path(sys.argv[2])
LAUNCHER = Path(__file__).parents[1] / "launch/standin_launcher.py"
# The rank says who its helper is, and leaves when it is told to; the helper, which inherited the device, never does.
RANK = """
import os, signal, sys
os.open(sys.argv[1], os.O_RDWR)
helper = os.fork()
if helper == 0:
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    signal.pause()
with open(sys.argv[2], "w") as told:
    print(helper, file=told)
open(sys.argv[3]).read()
"""


def main():
    device = FOLDER / "nvidia0"
    device.touch()
    (FOLDER / "rank.py").write_text(RANK)
    told, leave = FOLDER / "told", FOLDER / "leave"
    os.mkfifo(told)
    os.mkfifo(leave)
    command = [sys.executable, "-m", "rankpatrol", "run", "--no-probe", "--no-bind", "--job-dir", str(FOLDER / "job")]
    command += [sys.executable, str(LAUNCHER), "1", str(FOLDER / "rank.py"), str(device), str(told), str(leave)]
    environment = {**os.environ, "TMPDIR": str(TMPDIR)}
    run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    helper = int(told.read_text())
    scanner = Scanner(AllJobs([RunJobs()]), devices=(str(device),), namespace=lambda: INITIAL_PID_NAMESPACE)
    patrol = OrphanPatrol(scanner, Policy(grace_s=0.0), evidence=FOLDER / "evidence")

    def say():
        patrol.look()
        judged = patrol.look()
        return [(one.verdict, one.why) for one in judged if one.process is not None and one.process.id.pid == helper], judged

    while_live, _ = say()
    leave.write_text("now")
    said = run.communicate(timeout=30)[1]
    kept = [path.name for path in TMPDIR.iterdir()]
    records = sorted(path.name for path in next(TMPDIR.iterdir()).iterdir()) if kept else []
    after, judged = say()
    released = reap(plan(judged, patrol.policy), patrol, ReapRules(term_s=2, memory_s=0.1, kill_switches=()))
    if released:
        os.waitpid(helper, 0)  # we are init here
    tempfile.tempdir = str(TMPDIR)
    from rankpatrol.launch.outlived import retire
    from rankpatrol.launch.rundir import RunDir

    retire(RunDir.create())  # the end of a later job
    print(
        json.dumps(
            {
                "code": run.returncode,
                "said": said,
                "helper": helper,
                "records": records,
                "while_live": while_live,
                "after": after,
                "released": [(one.process.pid, one.done) for one in released],
                "left": [path.name for path in TMPDIR.iterdir()],
            }
        )
    )


main()
