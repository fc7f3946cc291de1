"""What the agent does not do, whatever was judged."""

import pytest

from clocks import FakeClock
from rankpatrol.act.plan import Outlook
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.recovery import NotRecovered, Recovery
from rankpatrol.agent.teller import Teller
from rankpatrol.agent.voice import Voice
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import EvidenceError
from rankpatrol.incident.records import IncidentState, Stage
from rankpatrol.launch.rundir import JobSpec, OrderedEnd, RunDir
from rankpatrol.system.lease import take_lease

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


def test_while_somebody_acts_on_its_slurm_job_from_another_node_nothing_is_done_in_place(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    for name, value in (("PATH", str(tmp_path)), ("SLURM_JOB_ID", "77"), ("RANKPATROL_LEASES", str(tmp_path / "leases"))):
        monkeypatch.setenv(name, value)
    run_dir, clock = RunDir(tmp_path), FakeClock()
    (tmp_path / "spool").mkdir()
    spec = JobSpec(
        job="job", job_dir=str(tmp_path), command=("train",), policy="recover", patience_s=180, checkpoints=None, started_unix_s=1.8e9
    )
    recovery = Recovery(spec, run_dir, Eyes("job", tmp_path, clock), clock, Teller(spec, run_dir, clock, Voice()))
    lease = take_lease(tmp_path / "leases" / "slurm-77", "rankpatrol end", clock, lasts_s=60)
    with pytest.raises(NotRecovered, match=r"rankpatrol end on .* acts on this job already"):
        recovery.recover(STATE, str(tmp_path / "no-bundle"), Outlook())
    lease.give_back()
    with pytest.raises(EvidenceError, match="no-bundle"):
        recovery.recover(STATE, str(tmp_path / "no-bundle"), Outlook())


@pytest.mark.parametrize(
    ("reason", "said"), [("stopped", "stopped, exit code 1; the rest: rankpatrol why '{}'"), ("failed", "failed, exit code 1")]
)
def test_a_stopped_job_says_where_its_story_is_read_wherever_it_lies(tmp_path, capfd, reason, said):
    folder = tmp_path / "my loop"
    (tmp_path / "spool").mkdir()
    spec = JobSpec(
        job="job", job_dir=str(folder), command=("train",), policy="recover", patience_s=180, checkpoints=None, started_unix_s=1.8e9
    )
    Teller(spec, RunDir(tmp_path), FakeClock(), Voice()).farewell(1, reason)
    assert capfd.readouterr().err.endswith(said.format(folder) + "\n")
