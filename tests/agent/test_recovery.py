"""What the agent does not do, whatever was judged."""

import pytest

from clocks import FakeClock
from rankpatrol.act.plan import Outlook
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.recovery import NotRecovered, Recovery
from rankpatrol.agent.teller import Teller
from rankpatrol.agent.voice import Voice
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.incident.records import IncidentState, Stage
from rankpatrol.launch.rundir import JobSpec, OrderedEnd, RunDir

FOUND = Diagnosis(verdict="hang", cause="rank_blocked", culprit_ranks=(1,), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps")
STATE = IncidentState(incident=1, attempt=0, stage=Stage.SEALED, onset_unix_s=1.8e9, diagnosis=FOUND)


def test_a_job_that_was_told_to_end_while_its_evidence_was_sealed_is_not_started_again(tmp_path):
    run_dir, clock = RunDir(tmp_path), FakeClock()
    (tmp_path / "spool").mkdir()
    spec = JobSpec(
        job="job", job_dir=str(tmp_path), command=("train",), policy="recover", patience_s=180, checkpoints=None, started_unix_s=1.8e9
    )
    run_dir.write("ending.json", OrderedEnd(signal="SIGTERM", at_unix_s=1.8e9))
    recovery = Recovery(spec, run_dir, Eyes("job", tmp_path, clock), clock, Teller(spec, run_dir, clock, Voice()))
    with pytest.raises(NotRecovered, match="told to end by SIGTERM"):
        recovery.recover(STATE, "no bundle is needed for doing nothing", Outlook())
