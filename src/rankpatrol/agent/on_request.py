"""A sealed bundle now, without a verdict, of ranks that were registered or found: touched by py-spy without a stop, and no more."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from rankpatrol.agent.found_ranks import FoundRanks, find_ranks
from rankpatrol.agent.roster import current_attempt
from rankpatrol.agent.within import marks_of, told_by_itself
from rankpatrol.collect.logs import LogTail
from rankpatrol.collect.processes import process_tree
from rankpatrol.collect.ranks import RankRecord, observe, with_stacks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import LogSample, Marks, ProcessSample, Snapshot
from rankpatrol.evidence.bundle import IncidentRef, SealedBundle
from rankpatrol.evidence.capture import Findings, seal
from rankpatrol.evidence.host import host_facts, within
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.schedulers.local import LocalScheduler
from rankpatrol.system.clock import Clock

_STACKS_S, _LOGS_S, _HOST_S = 8.0, 3.0, 6.0
_NOT_ASKED = Missing("not asked for: a capture on request touches a rank by py-spy alone")
_NO_LOG = Missing("its output goes to no file that could be found")


class Whom(Record, frozen=True, kw_only=True):
    """Whose evidence is taken."""

    job: str
    attempt: int
    world_size: int
    records: tuple[RankRecord, ...]
    marks: dict[int, Marks | Missing]
    folders: tuple[str, ...]
    scheduler: dict[str, object] | None = None
    remark: str = ""


def whom_by_pid(pid: int) -> Whom:
    """The ranks at or below a process. Raises BadInput or NoPermission."""
    found = find_ranks(pid)
    return Whom(
        job=f"pid-{pid}",
        attempt=0,
        world_size=found.world_size,
        records=found.records,
        marks={},
        folders=_working_folders(found.records),
        remark=_remark(found),
    )


def whom_by_job(spec: JobSpec, run_dir: RunDir) -> Whom:
    """The ranks of a job's newest attempt, as their shims registered them. Raises BadInput."""
    attempt = current_attempt(run_dir)
    if attempt is None or not attempt.places:
        raise BadInput(
            f"no rank of job {spec.job} has registered",
            help="It is starting, or its launcher needs `rankpatrol shim`; or name a process: --pid PID",
        )
    return Whom(
        job=spec.job,
        attempt=attempt.number,
        world_size=attempt.world_size(),
        records=attempt.records(Path(spec.job_dir)),
        marks={place.rank: marks_of(place) for place in attempt.places},
        folders=tuple(folder for folder in (spec.job_dir, spec.checkpoints) if folder),
        scheduler=LocalScheduler(run_dir).describe(),
    )


def capture(out: Path, whom: Whom, by: str, clock: Clock) -> tuple[SealedBundle, Snapshot]:
    """Look once and seal at `out`. Raises NoPermission where no rank could be read, EvidenceError where it cannot be written."""
    snapshot = _look(whom, clock)
    if all(isinstance(sample.process, Missing) for sample in snapshot.ranks):
        raise _nothing_seen(snapshot)
    pids = [sample.process.id.pid for sample in snapshot.ranks if isinstance(sample.process, ProcessSample)]
    findings = Findings(
        diagnosis=_no_verdict(by, whom.remark),
        snapshot=snapshot,
        host=host_facts(pids, [Path(folder) for folder in whom.folders], deadline_s=_HOST_S),
        scheduler=whom.scheduler,
        checkpoints=None,
        touched=("every rank and its descendants: py-spy without a pause, once", *told_by_itself(snapshot)),
    )
    of = IncidentRef(job=whom.job, attempt=whom.attempt, incident=0, onset_unix_s=snapshot.at_unix_s)
    return seal(out, of, findings, clock), snapshot


def _look(whom: Whom, clock: Clock) -> Snapshot:
    tree = process_tree()
    logs = _logs(whom.records)
    samples = [
        msgspec.structs.replace(
            with_stacks(observe(record, tree, full=True), _STACKS_S, may_stop=False, pipe=record.stacks),
            log=logs[record.rank],
            marks=whom.marks.get(record.rank, Missing("no probe in this rank")),
            recording=_NOT_ASKED,
        )
        for record in whom.records
    ]
    return Snapshot(
        job=whom.job,
        attempt=whom.attempt,
        at_mono_s=clock.mono_s(),
        at_unix_s=clock.unix_s(),
        world_size=whom.world_size,
        ranks=tuple(samples),
    )


def _logs(records: tuple[RankRecord, ...]) -> Mapping[int, LogSample | Missing]:
    """The ends of the ranks' logs; a file system that hangs keeps its own reader and nobody else."""
    wanted = {str(record.rank): LogTail(record.log_path).read for record in records if record.log_path}
    found = within(wanted, _LOGS_S)
    return {record.rank: found.get(str(record.rank), _NO_LOG) for record in records}


def _working_folders(records: tuple[RankRecord, ...]) -> tuple[str, ...]:
    """Where the ranks work, by the kernel's word: their file systems are asked how full they are."""
    folders: dict[str, None] = {}
    for record in records:
        try:
            folders[str(Path(f"/proc/{record.process.pid}/cwd").readlink())] = None
        except OSError:
            continue
    return tuple(folders)


def _remark(found: FoundRanks) -> str:
    if not found.guessed:
        return ""
    pids = ", ".join(map(str, found.guessed))
    return f"; nobody told the rank of process {pids}: its number is ours"


def _no_verdict(by: str, remark: str) -> Diagnosis:
    return Diagnosis(
        verdict="undetermined",
        cause="unknown",
        certainty=Certainty.SUSPECTED,
        sentence=f"captured on request by {by}, without a verdict{remark}",
        reasons_against=("one look shows no standstill: take a second one to compare",),
    )


def _nothing_seen(snapshot: Snapshot) -> BadInput | NoPermission:
    reasons = list(dict.fromkeys(sample.process.reason for sample in snapshot.ranks if isinstance(sample.process, Missing)))
    if any("refuses" in reason for reason in reasons):
        return NoPermission(
            f"nothing could be read of any rank: {reasons[0]}", help="Nothing was written. Run it as the ranks' user, or as root."
        )
    return BadInput(
        f"no rank is left to capture: {reasons[0] if reasons else 'there is none'}",
        help="Nothing was written. The job directory has the ranks' logs.",
    )
