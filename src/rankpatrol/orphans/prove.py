"""The decision table: one row a situation, the first that holds speaks. Pure, and the only maker of a proof.

Row numbers are those of docs/orphans.md. What no row proves is never signalled.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.orphans.case import Case
from rankpatrol.orphans.gpus import judge_gpus
from rankpatrol.orphans.history import History
from rankpatrol.orphans.nvml_words import trusted
from rankpatrol.orphans.records import HomeKind, JobState, JobWord, Judged, Policy, ProcessSeen, ProvenOrphan, Scan, Verdict
from rankpatrol.orphans.services import is_mps_server, listed_service

ASK_OWNER = "Ask its owner; nothing is done here."
SCAN_AGAIN = "Scan again."


class Row(NamedTuple):
    """One row of the table."""

    number: int
    verdict: Verdict
    holds: Callable[[Case], bool]
    why: Callable[[Case], str] | str
    advice: str = ""


def _owner(case: Case, state: JobState) -> JobWord | None:
    word = case.owner
    return word if word is not None and word.state is state else None


def _ended(case: Case) -> JobWord | None:
    return _owner(case, JobState.ENDED)


def _never(case: Case) -> bool:
    return case.process.id.pid <= 1 or case.process.id.pid in case.scan.us or case.process.kernel_thread


def _gone_elsewhere(case: Case) -> bool:
    """Its cgroup and its environment name two jobs, and the second is not known to have ended."""
    claimed = case.claimed
    return claimed is not None and case.process.tie is None and claimed.job != case.home_id and claimed.state is not JobState.ENDED


def _of_another_user(case: Case) -> bool:
    word = case.owner
    return word is not None and word.uid is not None and word.uid != case.process.uid


def _misplaced(case: Case) -> list[str]:
    word = _owner(case, JobState.LIVE)
    if word is None or word.devices is None:
        return []
    return [path for path in case.holds if path[-1:].isdigit() and path not in word.devices]


def _escaped_from(case: Case) -> JobWord | None:
    """The ended job that only its environment names."""
    claimed = case.claimed
    nowhere = case.at_home(HomeKind.NONE) and case.process.tie is None
    return claimed if nowhere and claimed is not None and claimed.state is JobState.ENDED else None


def _owner_is_elsewhere(case: Case) -> bool:
    """Its user has nothing else here that could own it."""
    word = _escaped_from(case)
    uid = case.process.uid
    return (
        word is not None
        and word.uid == uid
        and case.started_in_run_of(word)
        and uid not in case.scan.live_uids()
        and uid not in case.scan.session_uids
    )


def _proven(case: Case) -> bool:
    word = _ended(case)
    return word is not None and case.grace_over(word) and case.sight.held_scans >= case.policy.scans and bool(case.holds)


def _nvml_is_silent(case: Case) -> bool:
    """NVML answers in words that can be believed, and does not name it: a forked child that holds its parent's context."""
    gpus = () if isinstance(case.scan.gpus, Missing) else case.scan.gpus
    lists = [trusted(gpu, case.scan) for gpu in gpus]
    return bool(lists) and not any(isinstance(named, Missing) for named in lists) and not case.named_by_nvml()


def _say_proven(case: Case) -> str:
    word = _ended(case)
    said = case.say_ended(word) if word is not None else ""
    return f"{said}, {case.tie}, and over {case.sight.held_scans} scans it holds {_files(case.holds)}"


def _files(paths: Iterable[str]) -> str:
    named = list(paths)
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(named[:3]) + more


def _say_wait(case: Case) -> str:
    channel = case.process.wait_channel
    return "a place the kernel does not tell" if isinstance(channel, Missing) else channel


def _say_silence(case: Case) -> str:
    word = case.owner
    return f"{word.by} does not say whether job {word.job} lives: {word.why}" if word is not None else ""


def _say_grace(case: Case) -> str:
    word = _ended(case)
    return f"{case.say_ended(word)}; {case.grace_s(word):.0f} s must pass before that is beyond doubt" if word is not None else ""


def _is_container_of_ended_job(case: Case) -> bool:
    claimed = case.claimed
    return case.at_home(HomeKind.CONTAINER) and claimed is not None and claimed.state is JobState.ENDED


ROWS: tuple[Row, ...] = (
    Row(20, Verdict.OURSELVES, _never, "this is rankpatrol itself, one of its ancestors, init, or a kernel thread"),
    Row(
        2,
        Verdict.UNKNOWN,
        lambda case: not case.scan.initial_namespace,
        "this is a container: pids here are not those that drivers and schedulers mean",
        "Run the scan on the node itself, outside of any container.",
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: isinstance(case.process.home, Missing) and case.process.tie is None,
        lambda case: f"whose it is cannot be told: {case.process.home.reason if isinstance(case.process.home, Missing) else ''}",
    ),
    Row(
        15,
        Verdict.HARMLESS,
        lambda case: case.process.state in "ZX" and case.process.threads <= 1,
        lambda case: f"it has ended and holds nothing; its parent, process {case.process.parent_pid}, has not asked for its end",
    ),
    Row(
        12,
        Verdict.SERVICE,
        lambda case: is_mps_server(case.process),
        "it is NVIDIA's MPS server or its control: it owns the memory of all its clients",
        "Never end it while clients run; `echo quit | nvidia-cuda-mps-control` ends it in order.",
    ),
    Row(
        11,
        Verdict.SERVICE,
        lambda case: listed_service(case.process) is not None,
        lambda case: f"it is a known service ({case.home_id}, by unit, program and user)",
    ),
    Row(
        10,
        Verdict.MISPLACED,
        lambda case: bool(_misplaced(case)),
        lambda case: f"job {case.home_id} runs, but {_files(_misplaced(case))} was not given to it",
        "Tell the job's owner and the administrator; nothing is done here.",
    ),
    Row(
        4,
        Verdict.OWN,
        lambda case: _owner(case, JobState.LIVE) is not None,
        lambda case: f"{case.tie}, which runs",
    ),
    Row(
        16,
        Verdict.STUCK,
        Case.stuck,
        lambda case: f"it hangs in the kernel, in {_say_wait(case)}, and takes no signal; none is sent",
    ),
    Row(
        16,
        Verdict.UNKNOWN,
        Case.blocked,
        lambda case: f"it is in D state now, in {_say_wait(case)}: that may last a moment or for ever",
        SCAN_AGAIN,
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: _owner(case, JobState.UNKNOWN) is not None,
        _say_silence,
        "Ask the scheduler by hand; then scan again.",
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: _ended(case) is not None and isinstance(case.process.environment, Missing),
        "its environment cannot be read: it may name another job, which lives",
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: _ended(case) is not None and _gone_elsewhere(case),
        lambda case: f"its cgroup names job {case.home_id}, its environment job {case.environment.job}, which may live",
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: _ended(case) is not None and _of_another_user(case),
        lambda case: f"it is in the place of job {case.owner.job if case.owner else ''}, but not its user's",
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: (word := _ended(case)) is not None and case.started_before(word),
        "it is older than the job that is meant: the job id was used again, or the job requeued",
    ),
    Row(
        9,
        Verdict.INTERACTIVE,
        lambda case: not isinstance(case.process.home, Missing) and case.process.home.adopted and case.process.tie is None,
        lambda case: f"it is a person's login that was taken into job {case.home_id}",
        ASK_OWNER,
    ),
    Row(
        12,
        Verdict.UNKNOWN,
        lambda case: _ended(case) is not None and case.mps_client(),
        lambda case: f"job {case.owner.job if case.owner else ''} has ended, but it may be a client of MPS: its end could break the others",
        "End it through MPS: `echo terminate_client SERVER_PID CLIENT_PID | nvidia-cuda-mps-control`.",
    ),
    Row(
        21,
        Verdict.UNKNOWN,
        lambda case: _ended(case) is not None and isinstance(case.process.devices, Missing),
        lambda case: f"what it holds cannot be seen: {case.process.devices.reason if isinstance(case.process.devices, Missing) else ''}",
    ),
    Row(
        21,
        Verdict.LEFT_OVER,
        lambda case: _ended(case) is not None and not case.holds,
        lambda case: f"job {case.owner.job if case.owner else ''} has ended and it lives on, but it holds no device",
        ASK_OWNER,
    ),
    Row(5, Verdict.UNKNOWN, lambda case: (word := _ended(case)) is not None and not case.grace_over(word), _say_grace, SCAN_AGAIN),
    Row(19, Verdict.ORPHAN, lambda case: _proven(case) and _nvml_is_silent(case), _say_proven),
    Row(5, Verdict.ORPHAN, _proven, _say_proven),
    Row(
        5,
        Verdict.UNKNOWN,
        lambda case: _ended(case) is not None,
        lambda case: (
            f"job {case.owner.job if case.owner else ''} has ended; it was seen holding a device in {case.sight.held_scans} scan only"
        ),
        SCAN_AGAIN,
    ),
    Row(
        6,
        Verdict.ORPHAN_CONTAINER,
        _is_container_of_ended_job,
        lambda case: f"its container {case.home_id[:12]} says that it belongs to job {case.environment.job}, which has ended",
        "Stop the container by its id through its runtime, such as `docker stop ID`.",
    ),
    Row(
        1,
        Verdict.UNKNOWN,
        lambda case: case.at_home(HomeKind.CONTAINER) or case.at_home(HomeKind.POD),
        lambda case: (
            f"it belongs to {'pod' if case.at_home(HomeKind.POD) else 'container'} {case.home_id[:36]}, whose runtime was not asked"
        ),
        "Ask the runtime whether its owner lives.",
    ),
    Row(
        9,
        Verdict.INTERACTIVE,
        lambda case: case.at_home(HomeKind.SESSION),
        lambda case: f"it belongs to a person's session ({case.home_id})",
        ASK_OWNER,
    ),
    Row(11, Verdict.SERVICE, lambda case: case.at_home(HomeKind.SERVICE), lambda case: f"it belongs to the service {case.home_id}"),
    Row(
        7,
        Verdict.LIKELY,
        _owner_is_elsewhere,
        lambda case: f"it left its job's cgroup; its environment, its user and its start fit job {case.environment.job}, which has ended",
        "Its environment is no proof: anybody can set it. Ask its owner, then end it by hand.",
    ),
    Row(
        8,
        Verdict.UNKNOWN,
        lambda case: _escaped_from(case) is not None,
        lambda case: f"its environment names job {case.environment.job}, which has ended; its user may have other work here",
        ASK_OWNER,
    ),
    Row(22, Verdict.UNKNOWN, lambda _: True, "nothing ties it to a job that is known", ASK_OWNER),
)


def judge(scan: Scan, history: History, policy: Policy) -> tuple[Judged, ...]:
    """A verdict for each process that the scan lists, and for each GPU that has something of its own to tell."""
    processes = tuple(judge_process(process, scan, history, policy) for process in scan.processes)
    return (*processes, *judge_gpus(scan, history, policy))


def judge_process(process: ProcessSeen, scan: Scan, history: History, policy: Policy) -> Judged:
    """The first row that holds. `history` already counts this scan."""
    case = Case(process, scan, history, policy)
    row = next(row for row in ROWS if row.holds(case))
    word = case.owner
    # 14: a leader that has ended while threads of it live is no zombie that one may pass over.
    headless = process.state in "ZX" and process.threads > 1
    judged = Judged(
        verdict=row.verdict,
        rows=(14, row.number) if headless else (row.number,),
        why=(row.why if isinstance(row.why, str) else row.why(case)) + ("; its leading thread has ended, others live" if headless else ""),
        advice=row.advice,
        process=process,
        job=word.job if word is not None else case.environment.job or "",
        used_bytes=_used_bytes(case),
    )
    return msgspec.structs.replace(judged, proof=_proof(case)) if row.verdict is Verdict.ORPHAN else judged


def _proof(case: Case) -> ProvenOrphan | None:
    word = _ended(case)
    if word is None:
        return None
    return ProvenOrphan(
        process=case.process.id, job=word.job, ended=case.say_ended(word), tie=case.tie, devices=case.holds, scans=case.sight.held_scans
    )


def _used_bytes(case: Case) -> int | None:
    lists = [trusted(gpu, case.scan) for gpu in (() if isinstance(case.scan.gpus, Missing) else case.scan.gpus)]
    told = [one.used_bytes for named in lists if not isinstance(named, Missing) for one in named if one.pid == case.process.id.pid]
    known = [used for used in told if used is not None]
    return sum(known) if known else None
