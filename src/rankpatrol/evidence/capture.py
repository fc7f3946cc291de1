"""Puts what was found into a sealed bundle, in CONTRACT's layout, redacted before anything is written."""

from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import RankSample, Snapshot
from rankpatrol.evidence.bundle import BundleWriter, IncidentRef, SealedBundle
from rankpatrol.evidence.findings import Findings, without_secrets
from rankpatrol.evidence.reading import AT_ALERT
from rankpatrol.evidence.report import render
from rankpatrol.system.clock import Clock

__all__ = ["Findings", "seal", "write_snapshot"]


def seal(final: Path, of: IncidentRef, findings: Findings, clock: Clock) -> SealedBundle:
    """Write and seal one whole bundle at `final`. Raises an EvidenceError, and leaves nothing behind, where that cannot be done."""
    clean = without_secrets(findings)
    with BundleWriter(final, clock) as writer:
        writer.add("diagnosis.json", as_json(clean.diagnosis))
        write_snapshot(writer, clean.snapshot, native=clean.native)
        for rank, why in clean.absent.items():
            writer.rank(rank, node="", pid=0)
            writer.missing(rank, "proc", why)
        if clean.snapshot_at_alert is not None:
            _write_files(writer, clean.snapshot_at_alert, AT_ALERT)
        _write_host(writer, clean.host)
        writer.add("scheduler.json", as_json(clean.scheduler))
        writer.add("checkpoints.json", as_json(clean.checkpoints))
        for how in clean.touched:
            writer.touched(how)
        writer.add("report.html", render(of, clean, clock.unix_s()).encode())
        return writer.seal(of)


def write_snapshot(writer: BundleWriter, snapshot: Snapshot, *, native: dict[int, str | Missing]) -> None:
    """Write the files of every rank and say in the manifest what was captured and what was not. The snapshot is redacted already."""
    _write_files(writer, snapshot, "")
    for sample in snapshot.ranks:
        writer.rank(sample.rank, node=sample.node, pid=sample.pid)
        facts = {
            "stack": sample.stack,
            "proc": sample.process,
            "log_tail": sample.log,
            "native": native.get(sample.rank, Missing("no native stack was asked for")),
            "flight_recorder": sample.recording,
        }
        for what, fact in facts.items():
            _record(writer, sample.rank, what, fact)
        _record_children(writer, sample)
        if isinstance(text := facts["native"], str):
            writer.add(f"ranks/{sample.rank}/native.txt", text.encode())


def as_json(value: Any) -> bytes:
    """Readable JSON, one item a line."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _write_files(writer: BundleWriter, snapshot: Snapshot, below: str) -> None:
    writer.add(f"{below}snapshot.json", msgspec.json.encode(snapshot))
    for sample in snapshot.ranks:
        folder = f"{below}ranks/{sample.rank}"
        if not isinstance(sample.stack, Missing):
            writer.add(f"{folder}/stack.json", as_json(sample.stack))
        if not isinstance(sample.process, Missing):
            writer.add(f"{folder}/proc.json", as_json(sample.process))
        if not isinstance(sample.recording, Missing):
            writer.add(f"{folder}/flight_recorder.json", as_json(sample.recording))
        if not isinstance(sample.log, Missing):
            writer.add(f"{folder}/log_tail.txt", "".join(f"{line}\n" for line in sample.log.tail).encode())
        for child in sample.descendants:
            stack = sample.child_stacks.get(child.id.pid, Missing("no stack was taken of this process"))
            writer.add(f"{folder}/children/{child.id.pid}.json", as_json({"process": child, "stack": stack}))


def _record(writer: BundleWriter, rank: int, what: str, fact: object) -> None:
    match fact:
        case Missing(reason=why):
            writer.missing(rank, what, why)
        case _:
            writer.captured(rank, what)


def _record_children(writer: BundleWriter, sample: RankSample) -> None:
    """Descendants are listed from /proc, so a rank whose process is unknown has unknown descendants, not none."""
    if isinstance(sample.process, Missing) and not sample.descendants:
        writer.missing(sample.rank, "children", sample.process.reason)
        return
    writer.captured(sample.rank, "children")
    for child in sample.descendants:
        stack = sample.child_stacks.get(child.id.pid, Missing("no stack was taken of this process"))
        if isinstance(stack, Missing):
            writer.missing(sample.rank, f"children/{child.id.pid}/stack", stack.reason)


def _write_host(writer: BundleWriter, host: dict[str, Any]) -> None:
    for name, fact in host.items():
        match fact:
            case {"type": "missing", "reason": str(why)} | Missing(reason=why):
                writer.host_missing(name, why)
            case str():
                writer.add(f"host/{name}.txt", fact.encode())
            case _:
                writer.add(f"host/{name}.json", as_json(fact))
