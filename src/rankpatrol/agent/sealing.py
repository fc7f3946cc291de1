"""Gathers what belongs into a bundle and seals it: fresh, or from what was put aside when the suspect was named."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rankpatrol.agent.bindings import for_bundle
from rankpatrol.agent.nodes.others import Others
from rankpatrol.agent.roster import Attempt, Roster
from rankpatrol.agent.within import told_by_itself
from rankpatrol.collect.gpus import sample_gpus
from rankpatrol.collect.stacks import take_native
from rankpatrol.core.errors import EvidenceError
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import FlightRecording, ProcessSample, RankSample, Snapshot
from rankpatrol.evidence.bundle import IncidentRef, reopen
from rankpatrol.evidence.capture import seal
from rankpatrol.evidence.findings import Findings
from rankpatrol.evidence.host import host_facts, within
from rankpatrol.evidence.shelf import tidy
from rankpatrol.incident.records import IncidentState
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.system.clock import Clock

_HOST_S, _NATIVE_S = 4.0, 6.0
_HOSTS_S = 9.0
# These are told at once: what was put aside belongs to another incident.
_NO_ALERT_BEFORE = frozenset({"slow", "healthy"})


class NothingSeen(EvidenceError):
    """No look at the ranks was kept."""

    help = "The agent was started again and the ranks are gone; their logs are in the job directory."


class Sealer:
    """Seals the incidents of one job."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, clock: Clock, others: Others) -> None:
        self._spec, self._run_dir, self._clock, self._others = spec, run_dir, clock, others
        self._roster = Roster(run_dir, others)
        self._aside: tuple[Snapshot, ...] = ()

    def put_aside(self, looks: tuple[Snapshot, ...]) -> None:
        """Keep the looks that named the suspect."""
        self._aside = looks

    def seal(self, root: Path, state: IncidentState, looks: tuple[Snapshot, ...], context: Mapping[str, object]) -> Path:
        """Seal under `root`/incidents; without fresh looks, what was put aside is sealed. Raises EvidenceError."""
        final = root / "incidents" / state.bundle_name()
        if final.exists():
            return Path(reopen(final).path)  # sealed by an agent that died before it could say so
        snapshot = looks[-1] if looks else self._aside[-1] if self._aside else None
        if snapshot is None:
            raise NothingSeen("there is no look at the ranks to seal")
        attempt = self._roster.read(state.attempt)
        native = self._native(state, snapshot, attempt) if looks else {}
        here = _pids_here(snapshot, attempt)
        bindings = partial(for_bundle, self._run_dir.bindings(state.attempt), here)
        findings = Findings(
            diagnosis=state.diagnosis,
            snapshot=snapshot,
            snapshot_at_alert=self._aside[-1] if looks and self._aside and state.diagnosis.verdict not in _NO_ALERT_BEFORE else None,
            native=native,
            host=self._hosts(list(here.values()), {"gpu_counters": sample_gpus, "bindings": bindings}),
            scheduler=context.get("scheduler"),
            checkpoints=context.get("checkpoints"),
            touched=_touched(snapshot, native, taken=len(looks) or len(self._aside)),
        )
        of = IncidentRef(job=self._spec.job, attempt=state.attempt, incident=state.incident, onset_unix_s=state.onset_unix_s)
        sealed = seal(final, of, findings, self._clock)
        tidy(final.parent, open_names=(str(state.incident), final.name))
        return Path(sealed.path)

    def _native(self, state: IncidentState, snapshot: Snapshot, attempt: Attempt) -> dict[int, str | Missing]:
        """One native stack, of a rank already judged stuck: it costs that rank a pause of 0.3 s and nobody else anything."""
        if state.stage != "judged" or not state.diagnosis.culprit_ranks:
            return {}
        culprits = [sample for sample in snapshot.ranks if sample.rank in state.diagnosis.culprit_ranks]
        return {
            sample.rank: self._others.native(attempt.group, sample.rank) if sample.rank in attempt.elsewhere else native_stack(sample)
            for sample in culprits[:1]
        }

    def _hosts(self, pids: list[int], more: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """This machine's facts, and below its name those of each other node."""
        asked = within({"here": lambda: self._here(pids, more), "elsewhere": self._others.hosts}, _HOSTS_S)
        here, elsewhere = asked["here"], asked["elsewhere"]
        facts = {"facts": here} if isinstance(here, Missing) else dict(here)
        for node, told in {} if isinstance(elsewhere, Missing) else elsewhere.items():
            named = re.sub(r"[^\w.-]", "_", node)
            facts.update(
                {f"{named}/facts": told} if isinstance(told, Missing) else {f"{named}/{name}": fact for name, fact in told.items()}
            )
        return facts

    def _here(self, pids: list[int], more: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        return host_facts(pids, self._paths(), deadline_s=_HOST_S, more=more)

    def _paths(self) -> list[Path]:
        wanted = [self._spec.job_dir, self._spec.checkpoints, "/dev/shm", "/tmp"]  # ruff: ignore[S108] - looked at, not written to
        return [Path(path) for path in wanted if path]


def native_stack(sample: RankSample) -> str | Missing:
    """One native stack of a rank of this node, which costs it a pause of 0.3 s."""
    if isinstance(sample.process, Missing):
        return sample.process
    if sample.process.state in "Tt":
        return Missing("a native stack would hang on a stopped process")
    return take_native(sample.process.id, deadline_s=_NATIVE_S)


def _pids_here(snapshot: Snapshot, attempt: Attempt) -> dict[int, int]:
    """By rank, of this node's ranks: a pid means something on one node alone."""
    here = (sample for sample in snapshot.ranks if sample.rank not in attempt.elsewhere)
    return {sample.rank: sample.process.id.pid for sample in here if isinstance(sample.process, ProcessSample)}


def _touched(snapshot: Snapshot, native: Mapping[int, str | Missing], taken: int) -> tuple[str, ...]:
    """How the ranks were touched, for the bundle."""
    looks = f"every rank and its descendants: py-spy without a pause, {taken} times"
    asked = [
        f"rank {sample.rank}: its flight recorder was read" for sample in snapshot.ranks if isinstance(sample.recording, FlightRecording)
    ]
    asked += [
        f"rank {sample.rank}: one of its threads was asked once to take the interpreter's lock"
        for sample in snapshot.ranks
        if isinstance(sample.gives_lock, bool)
    ]
    return (looks, *told_by_itself(snapshot), *asked, *(f"rank {rank}: one native stack, a pause of about 0.3 s" for rank in native))
