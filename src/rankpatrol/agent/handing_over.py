"""The end of a job's records: what the job directory has not taken stays in the run directory, and the user is told where."""

import contextlib
import shutil
from pathlib import Path

from rankpatrol.agent.recovery import CARRY_S
from rankpatrol.agent.teller import Teller
from rankpatrol.evidence.shelf import shelve
from rankpatrol.launch.rundir import JobSpec, Released, RunDir
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic


def hand_over(spec: JobSpec, run_dir: RunDir, teller: Teller, clock: Clock, state: bytes) -> None:
    """Carry what is left; the job's last `state` is on its way already.

    Where that fails, the spool becomes a job directory of its own: `status` and `why` read it as well.
    """
    courier, job_dir = teller.courier, Path(spec.job_dir)
    courier.send(lambda: bring_evidence(run_dir.spool, job_dir))
    delivered = courier.delivered(CARRY_S)
    if delivered and not teller.journal.backlog():
        return
    run_dir.write("undelivered.json", Released(at_unix_s=clock.unix_s()))
    with contextlib.suppress(OSError):
        write_atomic(run_dir.spool / "state.json", state)
        shutil.copyfile(run_dir.path / "job.json", run_dir.spool / "job.json")
    why = courier.trouble()
    refuses = f"takes no more ({why})" if why else "takes no more" if delivered else "does not answer"
    teller.voice.say(f"the job directory {refuses}: its records stay in {run_dir.spool}", "alert")


def bring_evidence(spool: Path, job_dir: Path) -> None:
    """What has not been carried yet: the disk may have been full then, or the agent that sealed it was killed. Raises OSError."""
    for sealed in sorted((spool / "incidents").glob("[!.]*")):
        shelve(sealed, job_dir / "incidents" / sealed.name)
    for released in sorted((spool / "orphans").glob("[!.]*")):
        final = job_dir / "orphans" / released.name
        if not final.exists():
            final.parent.mkdir(exist_ok=True)
            shutil.copyfile(released, final)
