"""The scan, the table and the history together: what the command and the agent call. Also the eyes that a release looks with."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from rankpatrol.collect.procfs import opened
from rankpatrol.collect.stacks import take_stack
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import Stack
from rankpatrol.orphans.explain import Mounts, explain
from rankpatrol.orphans.history import History, remember
from rankpatrol.orphans.kernel_state import read_mounts
from rankpatrol.orphans.prove import judge, judge_process
from rankpatrol.orphans.records import GpuSeen, Judged, Policy, Scan, Verdict
from rankpatrol.orphans.scan import Scanner
from rankpatrol.system.files import write_atomic

Gpus = tuple[GpuSeen, ...] | Missing


class Evidence(Record, frozen=True, kw_only=True):
    """What is kept of an orphan before it is signalled."""

    at_unix_s: float
    node: str
    judged: Judged
    kernel_stacks: dict[str, str]
    python_stack: object
    open_files: tuple[str, ...]
    memory: tuple[str, ...]
    gpus: object


class OrphanPatrol:
    """Scans, remembers, and judges. Nothing is proved by the first scan, unless `history` was given one before."""

    def __init__(
        self,
        scanner: Scanner,
        policy: Policy,
        *,
        evidence: Path,
        gpus: Callable[[float], Gpus] = lambda _: Missing("NVML was not asked"),
        stack: Callable[[ProcessId], Stack | Missing] = lambda process: take_stack(process, deadline_s=2.0),
    ) -> None:
        self._scanner, self.policy, self._evidence, self._gpus, self._stack = scanner, policy, evidence, gpus, stack
        self.history = History()
        self.last: Scan | None = None

    def look(self) -> tuple[Judged, ...]:
        """One scan, judged in the light of those before."""
        scan = self._scanner.scan()
        self.history = remember(self.history, scan, idle_floor_bytes=self.policy.idle_floor_bytes)
        self.last = scan
        mounts: Mounts | None = None
        judged = []
        for one in judge(scan, self.history, self.policy):
            if 16 in one.rows:
                mounts = read_mounts() if mounts is None else mounts
                told = explain(one, mounts)
                advice = told if one.verdict is Verdict.STUCK else f"Scan again, over minutes. If it lasts: {told[0].lower()}{told[1:]}"
                judged.append(msgspec.structs.replace(one, advice=advice))
            else:
                judged.append(one)
        return tuple(judged)

    def judge_again(self, process: ProcessId) -> Judged | Missing:
        """This one process as it is now; its job's authority is asked anew, the rest is as the last scan saw it."""
        if self.last is None:
            return Missing("there was no scan")
        seen = self._scanner.look_again(process)
        if isinstance(seen, Missing):
            return seen
        jobs = {**self.last.jobs, **self._scanner.words([seen])}
        now = msgspec.structs.replace(self.last, at_unix_s=time.time(), jobs=jobs)
        return judge_process(seen, now, self.history, self.policy)

    def holds(self, process: ProcessId) -> tuple[str, ...]:
        seen = self._scanner.look_again(process)
        return () if isinstance(seen, Missing) or isinstance(seen.devices, Missing) else seen.devices

    def holders(self, device: str) -> tuple[int, ...]:
        return self._scanner.holders(device)

    def gpus(self, deadline_s: float) -> Gpus:
        return self._gpus(deadline_s)

    def keep_evidence(self, judged: Judged) -> Path:
        """One file per orphan. Raises OSError."""
        process = judged.process
        assert process is not None, "only processes carry a proof"  # ruff: ignore[S101] - a programming error
        self._evidence.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = _evidence_of(judged, process.id, self._stack(process.id), self.last)
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{process.id.pid}-{process.id.start_ticks}.json"
        path = self._evidence / name
        write_atomic(path, msgspec.json.format(msgspec.json.encode(kept)), durable=True)
        return path


def _evidence_of(judged: Judged, process: ProcessId, stack: Stack | Missing, scan: Scan | None) -> Evidence:
    with opened(process.pid) as folder:
        if isinstance(folder, Missing):
            stacks: dict[str, str] = {}
            files: tuple[str, ...] = ()
            memory: tuple[str, ...] = ()
        else:
            threads = folder.threads()
            stacks = {str(tid): _text(folder.read(f"task/{tid}/stack")) for tid in ({} if isinstance(threads, Missing) else threads)}
            names = folder.entries("fd")
            files = tuple(f"{name} {_text(folder.link(f'fd/{name}'))}" for name in ([] if isinstance(names, Missing) else names[:512]))
            memory = tuple(_memory_lines(_text(folder.read("status", 8192)).splitlines()))
    return Evidence(
        at_unix_s=time.time(),
        node=os.uname().nodename,
        judged=judged,
        kernel_stacks=stacks,
        python_stack=stack,
        open_files=files,
        memory=memory,
        gpus=None if scan is None else scan.gpus,
    )


def _memory_lines(lines: Iterable[str]) -> Iterable[str]:
    return (" ".join(line.split()) for line in lines if line.startswith(("Vm", "Rss")))


def _text(part: bytes | str | Missing) -> str:
    if isinstance(part, Missing):
        return part.reason
    return part if isinstance(part, str) else part.decode(errors="replace").strip()
