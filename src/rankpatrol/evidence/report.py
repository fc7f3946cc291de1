"""The report: one self-contained page that opens offline and tells the story from the sentence down to each frame. Pure."""

import functools
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import jinja2
import markupsafe
import msgspec

from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import Frame, ProcessSample, RankSample, Stack, SystemCall
from rankpatrol.evidence.bundle import IncidentRef
from rankpatrol.evidence.findings import Findings
from rankpatrol.evidence.picture import draw, find_process, role

# The full stacks of more ranks than this stay in the bundle's files alone: a page of a thousand ranks opens slowly.
_FULL_RANKS = 48
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible wait (D)",
    "T": "stopped (T)",
    "t": "traced (t)",
    "Z": "zombie (Z)",
    "X": "dead (X)",
    "I": "idle (I)",
}
_CERTAINTY = {
    "proved": "proved: it was shown that this cannot end by itself",
    "supported": "supported: two independent lines of evidence agree",
    "suspected": "suspected: one line of evidence",
}
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3(?:\.\d+)?)/|^<frozen ")


class ProcessView(Record, frozen=True, kw_only=True):
    """One process of a rank, as the page shows it."""

    title: str
    state: str
    waits_in: str
    stack: Stack | Missing
    sample: ProcessSample | Missing


class RankView(Record, frozen=True, kw_only=True):
    """One rank's row, and what opens under it. `full` is false where the page only points at the files."""

    rank: int
    node: str
    pid: int
    role: str
    state: str
    waits_in: str
    top: tuple[Frame, ...]
    below: str
    since_alert: str
    missing: dict[str, str]
    processes: tuple[ProcessView, ...]
    native: str | None
    log_tail: tuple[str, ...]
    full: bool


def render(of: IncidentRef, findings: Findings, sealed_unix_s: float) -> str:
    """The whole page. The findings are redacted already; whatever they hold is shown as text and never as markup."""
    return _template().render(
        of=of,
        findings=findings,
        diagnosis=findings.diagnosis,
        certainty=_CERTAINTY[findings.diagnosis.certainty],
        picture=draw(findings.diagnosis, findings.snapshot),
        ranks=tuple(_rank_views(findings)),
        sealed_unix_s=sealed_unix_s,
        host=_host(findings.host),
    )


def _rank_views(findings: Findings) -> Iterator[RankView]:
    """Those who are waited for come first, then the ranks in order."""
    order = {"culprit": 0, "awaited": 0}
    samples = sorted(findings.snapshot.ranks, key=lambda sample: (order.get(role(findings.diagnosis, sample.rank), 1), sample.rank))
    for place, sample in enumerate(samples):
        yield _rank_view(findings, sample, full=place < _FULL_RANKS)


def _rank_view(findings: Findings, sample: RankSample, *, full: bool) -> RankView:
    native = findings.native.get(sample.rank)
    own = _process_view(f"rank {sample.rank}", sample.process, sample.stack)
    missing = {
        name: fact.reason
        for name, fact in (("process", sample.process), ("stack", sample.stack), ("log", sample.log), ("native stack", native))
        if isinstance(fact, Missing)
    }
    return RankView(
        rank=sample.rank,
        node=sample.node,
        pid=sample.pid,
        role=role(findings.diagnosis, sample.rank),
        state=own.state if sample.exit_status is None else _say_exit(sample.exit_status),
        waits_in=own.waits_in,
        top=top_frames(sample.stack),
        below=_blocked_below(findings, sample),
        since_alert=_since_alert(findings, sample),
        missing=missing,
        processes=(own, *_children(sample)) if full else (),
        native=native if full and isinstance(native, str) else None,
        log_tail=sample.log.tail if full and not isinstance(sample.log, Missing) else (),
        full=full,
    )


def _children(sample: RankSample) -> Iterator[ProcessView]:
    for child in sample.descendants:
        yield _process_view(child.name, child, sample.child_stacks.get(child.id.pid, Missing("no stack was taken of this process")))


def _process_view(title: str, sample: ProcessSample | Missing, stack: Stack | Missing) -> ProcessView:
    if isinstance(sample, Missing):
        return ProcessView(title=title, state="unknown", waits_in=sample.reason, stack=stack, sample=sample)
    state = _STATES.get(sample.state, f"unknown state {sample.state}")
    return ProcessView(title=f"{title}, process {sample.id.pid}", state=state, waits_in=waits_in(sample), stack=stack, sample=sample)


def waits_in(sample: ProcessSample) -> str:
    """The call that a process is blocked in, with its file, and where in the kernel: `openat(/data/x) · fifo_open`."""
    parts: list[str] = []
    match sample.system_call:
        case Missing(reason=why):
            parts.append(f"system call unknown: {why}")
        case SystemCall(name="running"):
            parts.append("in user space")
        case SystemCall(name=name, path=path, offset_bytes=offset):
            at = "" if offset is None else f" at byte {offset}"
            parts.append(f"{name}({path or ''}{at})")
    if not isinstance(sample.wait_channel, Missing) and sample.wait_channel not in {"", "0"}:
        parts.append(sample.wait_channel)
    return " · ".join(parts)


def top_frames(stack: Stack | Missing, count: int = 3) -> tuple[Frame, ...]:
    """The innermost frames of the main thread, and the innermost of the user's own where it lies deeper."""
    thread = None if isinstance(stack, Missing) else stack.main_thread()
    if thread is None:
        return ()
    shown = list(thread.frames[:count])
    users = [frame for frame in thread.frames if not is_library(frame.file)]
    if users and users[0] not in shown:
        shown.append(users[0])
    return tuple(shown)


def _blocked_below(findings: Findings, sample: RankSample) -> str:
    """What the blocked process that the diagnosis names waits in, where it is a descendant of this rank."""
    found = find_process(findings.diagnosis, findings.snapshot)
    if found is None or found[0].rank != sample.rank or found[1].id.pid == sample.pid:
        return ""
    return f"{found[1].name} {found[1].id.pid}: {waits_in(found[1])}"


def is_library(file: str) -> bool:
    """Whether a frame's file belongs to Python or an installed package, not to the user."""
    return _LIBRARY.search(file) is not None


def short_file(file: str) -> str:
    """The part of a path that a reader needs: below site-packages or the standard library, else its last three names."""
    found = _LIBRARY.search(file)
    while found and (deeper := _LIBRARY.search(file, found.end() - 1)):
        found = deeper
    return file[found.end() :] if found and found.group().endswith("/") else "/".join(file.split("/")[-3:])


def _since_alert(findings: Findings, sample: RankSample) -> str:
    """Whether the main thread stands where it stood at the alert; empty where that cannot be told."""
    if findings.snapshot_at_alert is None:
        return ""
    before = next((rank.stack for rank in findings.snapshot_at_alert.ranks if rank.rank == sample.rank and rank.pid == sample.pid), None)
    then = top_frames(before) if isinstance(before, Stack) else ()
    now = top_frames(sample.stack)
    if not then or not now:
        return ""
    past_s = say_duration(findings.snapshot.at_mono_s - findings.snapshot_at_alert.at_mono_s)
    return f"stands where it stood {past_s} earlier" if then == now else f"moved in the last {past_s}"


def _say_exit(status: int) -> str:
    if status >= 0:
        return f"exited with {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"ended by {names.get(-status, f'signal {-status}')}"


def _with_code(text: str) -> markupsafe.Markup:
    """Escaped text in which `words in backticks` are set as code."""
    return markupsafe.Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(markupsafe.escape(text))))  # ruff: ignore[S704] - escaped just here


def _host(host: dict[str, Any]) -> dict[str, str]:
    return {name: fact if isinstance(fact, str) else _json(fact) for name, fact in host.items()}


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rankpatrol", "evidence"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        utc=_utc, duration=say_duration, short_file=short_file, is_library=is_library, as_json=_json, with_code=_with_code
    )
    environment.tests["missing"] = lambda value: isinstance(value, Missing)
    return environment.get_template("report.html.j2")
