"""The deed: ends proven orphans, and nobody else. Each is pinned first, checked again after, and its evidence kept before any signal."""

import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from rankpatrol.core.errors import PatrolError, ProcessChanged
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.orphans.plan import ReapPlan
from rankpatrol.orphans.records import GpuSeen, Judged, ProvenOrphan, Verdict
from rankpatrol.system.process import pinned

_POLL_S = 0.02
_NVML_S = 3.0


class ReapRules(Record, frozen=True, kw_only=True):
    """How long an orphan has for each signal, and how long a GPU for giving its memory back after its last holder went."""

    term_s: float = 10.0
    kill_s: float = 10.0
    memory_s: float = 5.0
    idle_floor_bytes: int = 1 << 30
    kill_switches: tuple[str, ...] = ("/etc/rankpatrol/no-reap", "/run/rankpatrol/no-reap")


class Released(Record, frozen=True, kw_only=True):
    """What came of one orphan, read back. `done`: its descriptors are closed, and its memory is back where that can be measured."""

    process: ProcessId
    job: str
    devices: tuple[str, ...]
    signals: tuple[str, ...]
    done: bool
    why: str
    seconds: float
    evidence: str = ""


class Eyes(Protocol):
    """Looks once more, right before a signal and after it."""

    def judge_again(self, process: ProcessId) -> Judged | Missing:
        """The whole table for this process as it is now, its job's authority asked anew."""
        ...

    def keep_evidence(self, judged: Judged) -> Path:
        """Write down its stacks, files and memory. Raises OSError or PatrolError: then nothing is signalled."""
        ...

    def holds(self, process: ProcessId) -> tuple[str, ...]:
        """The device files that this process has open now."""
        ...

    def holders(self, device: str) -> tuple[int, ...]:
        """Everybody that has this device file open now."""
        ...

    def gpus(self, deadline_s: float) -> tuple[GpuSeen, ...] | Missing:
        """NVML's word of now."""
        ...


class _Pinned(NamedTuple):
    """An orphan whose number cannot become another's unseen."""

    orphan: ProvenOrphan
    pidfd: int
    began_mono_s: float


class _Held(NamedTuple):
    """One that was proven a second time, and whose evidence is kept."""

    orphan: ProvenOrphan
    pidfd: int
    began_mono_s: float
    evidence: str


def stopped_by(switches: Sequence[str]) -> str:
    """The kill switch that is there, or an empty word. One that cannot be looked for counts as there."""
    for path in switches:
        try:
            if Path(path).exists():
                return path
        except OSError:
            return path
    return ""


def reap(plan: ReapPlan, eyes: Eyes, rules: ReapRules) -> tuple[Released, ...]:
    """Carry out the plan: SIGTERM to all, and SIGKILL to those that are left. Safe to interrupt after any step."""
    with ExitStack() as pins:
        pinned_ones = [_pin(orphan, pins) for orphan in plan.orphans]
        release = _Release(eyes, rules)
        with ThreadPoolExecutor(max_workers=8) as pool:  # evidence takes a second each, and the dead rank's peers wait
            ready = list(pool.map(release.prepare, pinned_ones))
        held = [one for one in ready if isinstance(one, _Held)]
        release.signal_all(held)
        memory = release.left_in_use(frozenset(device for one in held for device in one.orphan.devices))
        return tuple(release.outcome(one, memory) if isinstance(one, _Held) else one for one in ready)


def _pin(orphan: ProvenOrphan, pins: ExitStack) -> "_Pinned | Released":
    began = time.monotonic()
    try:
        return _Pinned(orphan, pins.enter_context(pinned(orphan.process)), began)
    except (ProcessChanged, OSError) as problem:
        return _spared(orphan, began, f"it ended by itself: {problem}")


def _spared(orphan: ProvenOrphan, began_mono_s: float, why: str) -> Released:
    return Released(
        process=orphan.process,
        job=orphan.job,
        devices=orphan.devices,
        signals=(),
        done=False,
        why=why,
        seconds=round(time.monotonic() - began_mono_s, 2),
    )


class _Release:
    """One release of all the plan's orphans together."""

    def __init__(self, eyes: Eyes, rules: ReapRules) -> None:
        self._eyes, self._rules = eyes, rules
        self._sent: dict[ProcessId, list[str]] = {}
        self._refused: dict[ProcessId, str] = {}

    def prepare(self, one: "_Pinned | Released") -> "_Held | Released":
        """Prove it anew and keep its evidence. Whatever fails here, no signal was sent."""
        if isinstance(one, Released):
            return one
        again = self._eyes.judge_again(one.orphan.process)
        if isinstance(again, Missing) or not _same_proof(one.orphan, again):
            why = again.reason if isinstance(again, Missing) else f"it is not proven any more: {again.why}"
            return _spared(one.orphan, one.began_mono_s, f"not signalled: {why}")
        if switch := stopped_by(self._rules.kill_switches):
            return _spared(one.orphan, one.began_mono_s, f"not signalled: {switch} is there")
        try:
            evidence = self._eyes.keep_evidence(again)
        except (OSError, PatrolError) as problem:
            return _spared(one.orphan, one.began_mono_s, f"not signalled, since its evidence could not be kept: {problem}")
        return _Held(one.orphan, one.pidfd, one.began_mono_s, str(evidence))

    def signal_all(self, held: Sequence["_Held"]) -> None:
        """SIGTERM, then SIGKILL to who is left; before each of them the whole table speaks again."""
        for number, wait_s in ((signal.SIGTERM, self._rules.term_s), (signal.SIGKILL, self._rules.kill_s)):
            waiting = [one for one in held if not _has_ended(one.pidfd) and self._signal(one, number)]
            until = time.monotonic() + wait_s
            while waiting and time.monotonic() < until:
                _wait([one.pidfd for one in waiting])
                waiting = [one for one in waiting if not _has_ended(one.pidfd)]

    def _signal(self, one: "_Held", number: signal.Signals) -> bool:
        again = self._eyes.judge_again(one.orphan.process)
        if isinstance(again, Missing) or not _same_proof(one.orphan, again):
            self._refused[one.orphan.process] = again.reason if isinstance(again, Missing) else again.why
            return False
        if switch := stopped_by(self._rules.kill_switches):
            self._refused[one.orphan.process] = f"{switch} is there"
            return False
        try:
            signal.pidfd_send_signal(one.pidfd, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            self._refused[one.orphan.process] = "it is another user's: only root may end it"
            return False
        self._sent.setdefault(one.orphan.process, []).append(number.name)
        return True

    def outcome(self, one: "_Held", memory: Mapping[str, int]) -> Released:
        """Success is not that a signal was sent: the descriptors are closed, and the memory is back."""
        left = {device: memory[device] for device in one.orphan.devices if device in memory}
        reasons = list(self._trouble(one, left))
        good = "its device files are closed" + (
            ", its GPU memory is back" if left else "; its memory cannot be told: others hold the GPU, or NVML does not say"
        )
        return Released(
            process=one.orphan.process,
            job=one.orphan.job,
            devices=one.orphan.devices,
            signals=tuple(self._sent.get(one.orphan.process, ())),
            done=not reasons,
            why="; ".join(reasons) or good,
            seconds=round(time.monotonic() - one.began_mono_s, 2),
            evidence=one.evidence,
        )

    def _trouble(self, one: "_Held", left: Mapping[str, int]) -> Iterator[str]:
        still = () if _has_ended(one.pidfd) else self._eyes.holds(one.orphan.process)
        if still:
            why = self._refused.get(one.orphan.process) or "no signal ended it"
            yield f"it still holds {', '.join(still)}: {why}"
        for device, used in left.items():
            if used > self._rules.idle_floor_bytes:
                yield f"{used / (1 << 30):.1f} GiB of {device} are in use, and nobody holds it: drain the node, then reset the GPU"

    def left_in_use(self, devices: frozenset[str]) -> dict[str, int]:
        """Memory of each of these GPUs that nobody holds any more; those that others hold, or that NVML does not tell, are left out."""
        until = time.monotonic() + self._rules.memory_s
        while True:
            gpus = self._eyes.gpus(min(_NVML_S, self._rules.memory_s))
            told = {gpu.device: gpu.used_bytes for gpu in (() if isinstance(gpus, Missing) else gpus) if gpu.device in devices}
            used = {device: left for device, left in told.items() if isinstance(left, int) and not self._eyes.holders(device)}
            if all(left <= self._rules.idle_floor_bytes for left in used.values()) or time.monotonic() > until:
                return used
            time.sleep(_POLL_S)


def _same_proof(orphan: ProvenOrphan, again: Judged) -> bool:
    proof = again.proof
    return again.verdict is Verdict.ORPHAN and proof is not None and proof.process == orphan.process and proof.job == orphan.job


def _has_ended(pidfd: int) -> bool:
    """A pidfd is readable once the process has ended with all its threads (pidfd_open(2))."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _wait(pidfds: Sequence[int]) -> None:
    """Until one of them ends, but not for long."""
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    poll.poll(int(_POLL_S * 1000))
