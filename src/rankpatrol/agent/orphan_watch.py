"""What a dead rank of this job left behind: found, proved by its shim's record, told, and released where the policy lets us act."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rankpatrol.agent.roster import Attempt
from rankpatrol.agent.teller import Teller
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.orphans.jobs import AllJobs, RunJobs
from rankpatrol.orphans.nvml import GpuWitness
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, Released, reap, stopped_by
from rankpatrol.orphans.records import Judged, Policy, Verdict
from rankpatrol.orphans.scan import Scanner, device_patterns

_SCANS = 3
_BETWEEN_S = 0.5
_WORTH_TELLING = frozenset({Verdict.ORPHAN, Verdict.STUCK})


class OrphanWatch:
    """Looks when an attempt is over, on a thread of its own: neither a scan nor a release holds the agent up."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, teller: Teller) -> None:
        self._spec, self._run_dir, self._teller = spec, run_dir, teller
        self._at_work: threading.Thread | None = None
        self._seen: set[tuple[int, int]] = set()
        # The journal has one writer, the agent's own thread.
        self._told: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def attempt_over(self, attempt: Attempt) -> None:
        """Every rank of the attempt has ended."""
        self._at_work = threading.Thread(target=self._look, args=(attempt.number,), name="orphans", daemon=True)
        self._at_work.start()

    def ranks_gone(self, attempt: Attempt) -> None:
        """A shim that is gone without a word swept nothing: what its rank left holds the others up."""
        gone = {(attempt.number, rank) for rank in attempt.gone}
        if gone - self._seen and (self._at_work is None or not self._at_work.is_alive()):
            self._seen |= gone
            self.attempt_over(attempt)

    def tell(self) -> None:
        """Tell what was found and done since the last call."""
        while not self._told.empty():
            self._told.get()()

    def settle(self, deadline_s: float) -> None:
        """Wait for what is under way: the records it goes by are gone with the run directory."""
        if self._at_work is not None:
            self._at_work.join(deadline_s)
        self.tell()

    def _later(self, what: str, style: str, kind: str = "", attempt: int = 0, **fields: Any) -> None:
        def say() -> None:
            self._teller.voice.say(what, style)
            if kind:
                self._teller.journal.tell(kind, attempt, **fields)

        self._told.put(say)

    def _look(self, attempt: int) -> None:
        try:
            self._patrol(attempt)
        except (OSError, PatrolError) as problem:
            self._later(f"what attempt {attempt} left behind could not be looked for: {problem}", "alert")

    def _patrol(self, attempt: int) -> None:
        # NVML is started only where something is found: most attempts leave nothing.
        witness: list[GpuWitness] = []
        scanner = Scanner(
            AllJobs([RunJobs()]),
            devices=device_patterns(os.environ),
            gpus=lambda: witness[0].look() if witness else Missing("NVML was not asked"),
        )
        patrol = OrphanPatrol(
            scanner,
            Policy(),
            evidence=self._run_dir.spool / "orphans",
            gpus=lambda deadline_s: witness[0].fresh(deadline_s) if witness else Missing("NVML was not asked"),
        )
        judged = self._ours(patrol.look())
        for _ in range(_SCANS - 1):
            if not judged:
                return
            if not witness:
                witness.append(GpuWitness())
            time.sleep(_BETWEEN_S)
            judged = self._ours(patrol.look())
        self._follow(attempt, patrol, judged)

    def _ours(self, judged: tuple[Judged, ...]) -> tuple[Judged, ...]:
        """Whatever our own run directory speaks of; every other process is somebody else's business."""
        return tuple(
            one
            for one in judged
            if one.process is not None
            and one.process.tie is not None
            and not isinstance(one.process.environment, Missing)
            and one.process.environment.run_dir == str(self._run_dir.path)
            and one.verdict is not Verdict.OWN
        )

    def _follow(self, attempt: int, patrol: OrphanPatrol, judged: tuple[Judged, ...]) -> None:
        for one in judged:
            if one.verdict in _WORTH_TELLING and one.process is not None:
                name = f"process {one.process.id.pid} ({one.process.name})"
                fields = {"pid": one.process.id.pid, "verdict": one.verdict, "sentence": one.why, "rows": one.rows}
                self._later(f"{one.verdict}: {name}: {one.why}. {one.advice}".rstrip(), "alert", "orphan", attempt, **fields)
        rules = ReapRules()
        what = plan(judged, patrol.policy, stopped_by=stopped_by(rules.kill_switches))
        if what.alert:
            self._later(what.alert, "alert")
        if self._spec.policy == "recover":
            for released in reap(what, patrol, rules):
                self._tell(attempt, released)

    def _tell(self, attempt: int, released: Released) -> None:
        evidence = self._carry(released.evidence)
        pid = released.process.pid
        fields = {"pid": pid, "done": released.done, "why": released.why, "signals": released.signals, "evidence": evidence}
        what = f"released process {pid} after {released.seconds:.1f} s" if released.done else f"process {pid} was not released"
        self._later(f"{what}: {released.why}", "good" if released.done else "alert", "orphan_released", attempt, **fields)

    def _carry(self, evidence: str) -> str:
        """To the job directory, where people look for it; returns where it will be."""
        if not evidence:
            return ""
        final = Path(self._spec.job_dir) / "orphans" / Path(evidence).name

        def carry() -> None:
            final.parent.mkdir(exist_ok=True)
            shutil.copyfile(evidence, final)

        self._teller.courier.send(carry)
        return str(final)
