"""The evidence of a job that a person wants ended: what is seen of its ranks on this node, and why the others are not."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.once import healthy, moved_ranks, places_of
from rankpatrol.agent.roster import Attempt, read_attempt
from rankpatrol.agent.watching import Wanted, look_around
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.jobs import JobProcess, JobStatus
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import ProcessSample, Snapshot
from rankpatrol.discover.records import FoundJob
from rankpatrol.evidence.bundle import IncidentRef, SealedBundle
from rankpatrol.evidence.capture import seal
from rankpatrol.evidence.findings import Findings, speakable
from rankpatrol.evidence.host import host_facts
from rankpatrol.launch.rundir import RankPlace, RunDir
from rankpatrol.system.clock import Clock

_ROUNDS, _ROUND_S = 3, 1.0
_HOST_S = 4.0


class Sight(Record, frozen=True, kw_only=True):
    """What was seen of the job. `nodes` are the scheduler's names of the nodes of ranks, where they are known.

    `patrolled_by` are the run directories of patrols that it has on this node.
    """

    snapshot: Snapshot
    first: Snapshot | None
    diagnosis: Diagnosis
    nodes: dict[int, str]
    absent: dict[int, str]
    patrolled_by: tuple[str, ...] = ()

    def suspect_nodes(self) -> tuple[str, ...]:
        """Those of the culprits; none where nobody is named, or where a culprit's node is not known."""
        culprits = self.diagnosis.culprit_ranks or ()
        return tuple(dict.fromkeys(self.nodes[rank] for rank in culprits if rank in self.nodes))


def see_local(status: JobStatus, run_dir: RunDir, clock: Clock) -> Sight:
    """A job of `rankpatrol run`: its shims say which process is which rank."""
    attempt = read_attempt(run_dir, status.restarts or 0)
    return _watch(status, attempt, Path(status.job), {}, clock)


def see_found(status: JobStatus, processes: tuple[JobProcess, ...] | Missing, clock: Clock) -> Sight:
    """A scheduler's job: its ranks are found among the processes of this node, and only those that the scheduler says are of the job."""
    # Where processes do not wear the scheduler's id, their cgroup alone tells whose they are.
    found, _ = look_around(Wanted(job=status.local_id or None))
    known = {} if isinstance(processes, Missing) else {each.process: each for each in processes}
    # A shell that was started in one job hands its variables on to what is submitted from it: the id alone proves nothing.
    own = {job.key: tuple(rank for rank in job.ranks if rank.process in known) for job in found}
    largest = max(found, key=lambda job: len(own[job.key]), default=None)
    ranks = () if largest is None else own[largest.key]
    if largest is None or not ranks:
        why = processes.reason if isinstance(processes, Missing) else "its processes here are no ranks that a launcher numbered"
        return _nothing(status, why, clock)
    job = replace(largest, ranks=ranks)
    nodes = {rank.rank: node for rank in ranks if (node := known[rank.process].node) is not None}
    with tempfile.TemporaryDirectory(prefix="rankpatrol-end-") as folder:
        attempt = _attempt(status, job)
        _lead_to_logs(job, Path(folder) / "attempts" / str(attempt.number))
        sight = _watch(status, attempt, Path(folder), nodes, clock)
    patrols = tuple(dict.fromkeys(each.patrolled_by for each in found if each.patrolled_by is not None and own[each.key]))
    return replace(sight, patrolled_by=patrols)


def seal_sight(path: Path, of: IncidentRef, sight: Sight, scheduler: Mapping[str, object], clock: Clock) -> SealedBundle:
    """Seal it. Raises an EvidenceError, and leaves nothing behind, where that cannot be done."""
    pids = [sample.process.id.pid for sample in sight.snapshot.ranks if isinstance(sample.process, ProcessSample)]
    looks = "every rank on this node and its descendants: py-spy without a pause, twice" if pids else "nobody: no rank was seen"
    findings = Findings(
        diagnosis=sight.diagnosis,
        snapshot=sight.snapshot,
        snapshot_at_alert=sight.first,
        host=host_facts(pids, [path.parent.parent], deadline_s=_HOST_S),
        scheduler=scheduler,
        touched=(looks,),
        absent=sight.absent,
    )
    return seal(path, of, findings, clock)


def _watch(status: JobStatus, attempt: Attempt, job_dir: Path, nodes: dict[int, str], clock: Clock) -> Sight:
    """Some seconds of watching, between two looks."""
    eyes = Eyes(status.job, job_dir, clock)
    eyes.begin(attempt)
    first = eyes.look()
    moved: set[int] = set()
    before = eyes.light()
    for _ in range(_ROUNDS):
        clock.sleep(_ROUND_S)
        after = eyes.light()
        moved |= moved_ranks(before, after)
        before = after
    last = eyes.look_whole()
    ranks = tuple(sorted(sample.rank for sample in last.ranks))
    found = healthy(ranks, attempt.world_size()) if ranks and set(ranks) <= moved else speakable(diagnose((first, last)))
    return Sight(snapshot=last, first=first, diagnosis=found, nodes=nodes, absent=_absent(status, attempt.world_size(), ranks))


def _nothing(status: JobStatus, why: str, clock: Clock) -> Sight:
    """No rank is seen here: the reasons are the evidence."""
    world_size = status.world_size or 0
    empty = Snapshot(
        job=status.job,
        attempt=status.restarts or 0,
        at_mono_s=clock.mono_s(),
        at_unix_s=clock.unix_s(),
        world_size=world_size,
        ranks=(),
    )
    found = Diagnosis(verdict="undetermined", cause="unknown", sentence=f"no rank is seen on this node: {why}")
    return Sight(snapshot=empty, first=None, diagnosis=found, nodes={}, absent=_absent(status, world_size, ()))


def _absent(status: JobStatus, world_size: int, seen: tuple[int, ...]) -> dict[int, str]:
    why = f"not seen from this node; the job's nodes are {', '.join(status.nodes) or 'not known'}"
    return {rank: why for rank in range(world_size) if rank not in seen}


def _attempt(status: JobStatus, job: FoundJob) -> Attempt:
    number = status.restarts or 0
    places: tuple[RankPlace, ...] = tuple(replace(place, attempt=number) for place in places_of(job))
    return Attempt(number=number, places=places, exits={}, gone=frozenset())


def _lead_to_logs(job: FoundJob, folder: Path) -> None:
    """Where a rank's output is a file, it is read there."""
    for rank in job.ranks:
        link = folder / f"rank{rank.rank}.log"
        with contextlib.suppress(OSError):
            link.parent.mkdir(parents=True, exist_ok=True)
            if rank.log_path is not None:
                link.symlink_to(rank.log_path)
