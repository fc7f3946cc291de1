"""From pasted stacks to snapshots: what a text does not tell is Missing."""

import re

import msgspec

from rankpatrol.analysis.causes.loader import LOADER_NAME
from rankpatrol.analysis.frames import meaning, plain_name
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.natives import native_call
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import Frame, ProcessSample, RankSample, Snapshot, Stack, SystemCall, ThreadStack
from rankpatrol.formats.stack_marks import ToldProcess
from rankpatrol.formats.stack_text import INTERRUPTED, ToldStacks

_NOT_TOLD = Missing("the text does not tell")
_LOADER_ROLE = re.compile(r"worker|loader", re.IGNORECASE)
_NO_STATE = "?"
_MOST_THREADS = 4096
# The old launcher passed each process its number.
_RANK_ARGUMENT = re.compile(r"--(?:local[_-]?)?rank[= ](\d+)")


class Told(Record, frozen=True, kw_only=True):
    """The snapshots of a text, oldest first.

    `numbered`: the text names ranks; otherwise processes are counted in its order, or within a node (`local`). `world_size` is what the
    text says of it. `cut_pid` is the process in whose stack the text ends, where its innermost frames may be missing. `fatal` holds what a
    fault handler wrote on the way out, with its rank, and `raised` the errors that tracebacks end in. `around` holds the lines before the
    first look, between the looks, and after the last.
    """

    history: tuple[Snapshot, ...]
    numbered: bool
    local: bool
    cut_pid: int | None
    fatal: tuple[tuple[int | None, str], ...]
    raised: tuple[tuple[int, str], ...]
    context: tuple[str, ...]
    world_size: int | None = None
    around: tuple[tuple[str, ...], ...] = ()


class _Member(Record, frozen=True):
    """One process of one rank, in every look that was taken of it."""

    rank: int
    is_child: bool
    looks: tuple[ToldProcess, ...]


def snapshots(told: ToldStacks) -> Told | None:
    """The looks of a text; None where no process is in it."""
    if not told.processes:
        return None
    numbered = any(process.header.rank is not None or _RANK_ARGUMENT.search(process.header.command or "") for process in told.processes)
    members = _members(_without_launchers(told.processes), numbered)
    depth = max(len(member.looks) for member in members)
    history = tuple(_snapshot(members, depth, look) for look in range(depth))
    cut_pid = _pid(told.processes[-1], _main_index(told.processes[-1])) if told.cut else None
    fatal = tuple(
        (process.header.rank, process.failure) for process in told.processes if process.failure and process.failure.startswith("Fatal")
    )
    return Told(
        history=history,
        numbered=numbered and not _is_local(told),
        local=_is_local(told),
        cut_pid=cut_pid,
        fatal=fatal,
        raised=_raised(told),
        context=told.context,
        world_size=told.world_size,
        around=_around(told),
    )


def _is_local(told: ToldStacks) -> bool:
    """True where numbers are counted within a node, and the text does not show that the job has no other."""
    return told.local and told.world_size != len({process.header.rank for process in told.processes})


def _around(told: ToldStacks) -> tuple[tuple[str, ...], ...]:
    """The lines of a text around its looks: a look ends where a process is shown again."""
    bounds = [0]
    seen: set[tuple[int | None, int | None]] = set()
    taken = [process for process in told.processes if process.threads]
    for at, process in enumerate(taken):
        who = (process.header.rank, process.header.pid)
        if who in seen:
            bounds.append(at)
            seen = set()
        seen.add(who)
    return tuple(
        tuple(line for line, at in zip(told.context, told.context_at, strict=True) if at == bound) for bound in (*bounds, len(taken))
    )


def _without_launchers(processes: tuple[ToldProcess, ...]) -> tuple[ToldProcess, ...]:
    """The processes but those that only start ranks and wait for their end; all of them where nothing else is shown."""
    return tuple(process for process in processes if not _launches(process)) or processes


def _launches(process: ToldProcess) -> bool:
    main = _main_index(process)
    frames = process.threads[main].frames if main is not None else ()
    inner = next((frame for frame in frames if "/lib/python3" not in frame.file and frame.file != "time"), None)
    return inner is not None and _LAUNCHERS.search(inner.file) is not None and plain_name(inner) not in _STARTS_A_RANK


_LAUNCHERS = re.compile(
    r"torch/distributed/(?:elastic/(?:agent|multiprocessing)/|launcher/|run\.py|launch\.py)|torch/multiprocessing/spawn\.py|"
    r"accelerate/commands/|deepspeed/launcher/|horovod/runner/"
)
_STARTS_A_RANK = frozenset({"_wrap", "record", "wrapper", "_wrap_function"})


def _raised(told: ToldStacks) -> tuple[tuple[int, str], ...]:
    """Errors of ranks. Whoever was interrupted shows where it stood, as any other stack does."""
    return tuple(
        (process.header.rank, process.raised)
        for process in told.processes
        if process.raised and process.header.rank is not None and not INTERRUPTED.match(process.raised)
    )


def is_loader(process: ToldProcess) -> bool:
    """True for a loader process: by its role, or by the loop that only such a process runs."""
    if process.header.role and _LOADER_ROLE.search(process.header.role):
        return True
    return any(
        frame.name.rpartition(".")[2] == "_worker_loop" and "data/_utils/worker.py" in frame.file
        for thread in process.threads
        for frame in thread.frames
    )


def _members(processes: tuple[ToldProcess, ...], numbered: bool) -> list[_Member]:
    own: dict[int, list[ToldProcess]] = {}
    children: dict[tuple[int, int], list[ToldProcess]] = {}
    by_pid: dict[int, int] = {}
    loose: list[ToldProcess] = []
    for process in processes:
        rank = _number(process, numbered, by_pid, own)
        if rank is None:
            loose.append(process)
        elif is_loader(process) or _is_below(process, own.get(rank)):
            children.setdefault((rank, process.header.pid or -len(children)), []).append(process)
        else:
            own.setdefault(rank, []).append(process)
            if process.header.pid is not None:
                by_pid[process.header.pid] = rank
    ranks = sorted({*own, *(rank for rank, _ in children)}) or [0]
    for process in loose:
        rank = by_pid.get(process.header.parent_pid or -1, ranks[0] if len(ranks) == 1 else None)
        if rank is not None:
            children.setdefault((rank, process.header.pid or -len(children)), []).append(process)
    members = [_Member(rank, False, tuple(looks)) for rank, looks in own.items()]
    return members + [_Member(rank, True, tuple(looks)) for (rank, _), looks in children.items()]


def _number(process: ToldProcess, numbered: bool, by_pid: dict[int, int], own: dict[int, list[ToldProcess]]) -> int | None:
    header = process.header
    if header.rank is not None:
        return header.rank
    if header.pid is not None and header.pid in by_pid:
        return by_pid[header.pid]
    if header.parent_pid is not None and header.parent_pid in by_pid:
        return by_pid[header.parent_pid]
    if (argument := _RANK_ARGUMENT.search(header.command or "")) and not is_loader(process):
        return int(argument[1])
    return None if numbered or is_loader(process) else len(own)


def _is_below(process: ToldProcess, own: list[ToldProcess] | None) -> bool:
    """True for another process of a rank whose own stack is there already: a child, or a second process under its header."""
    if not own:
        return False
    pid = own[0].header.pid
    return pid is not None and process.header.pid is not None and pid != process.header.pid


def _snapshot(members: list[_Member], depth: int, look: int) -> Snapshot:
    """The look counted from the end: a process that was seen less often is as it was seen first."""
    ranks: dict[int, list[tuple[_Member, ToldProcess]]] = {}
    for member in members:
        at = max(0, len(member.looks) - depth + look)
        ranks.setdefault(member.rank, []).append((member, member.looks[at]))
    samples = tuple(_rank(rank, ranks[rank]) for rank in sorted(ranks))
    return Snapshot(job="told", attempt=0, at_mono_s=float(look), at_unix_s=0.0, world_size=len(samples), ranks=samples)


def _rank(rank: int, members: list[tuple[_Member, ToldProcess]]) -> RankSample:
    own = next((process for member, process in members if not member.is_child), None)
    children = [_process(process, is_child=True) for member, process in members if member.is_child]
    seen, stack = _process(own, is_child=False) if own else (Missing("only processes below it are shown"), Missing("not shown"))
    return RankSample(
        rank=rank,
        local_rank=rank,
        node=(own.header.node if own else None) or "",
        shim_pid=0,
        pid=seen.id.pid if isinstance(seen, ProcessSample) else 0,
        process=seen,
        descendants=tuple(child for child, _ in children),
        stack=stack,
        child_stacks={child.id.pid: its for child, its in children},
    )


def _process(told: ToldProcess, *, is_child: bool) -> tuple[ProcessSample, Stack | Missing]:
    index = _main_index(told)
    threads = told.threads
    main = threads[index] if index is not None else None
    pid = _pid(told, index)
    sample = ProcessSample(
        id=ProcessId("", pid, 0),
        parent_pid=told.header.parent_pid or 0,
        name=LOADER_NAME if is_child and is_loader(told) else "python",
        command=_NOT_TOLD,
        state=told.state or _state(told, index),
        tracer_pid=0,
        wait_channel=told.wait_channel or (told.kernel[0] if told.kernel else _NOT_TOLD),
        system_call=_call(main),
        cpu_ticks=0,
        main_thread_ticks=0,
        voluntary_switches=0,
        involuntary_switches=0,
        minor_faults=0,
        major_faults=0,
        resident_bytes=0,
        io=_NOT_TOLD,
        open_files=_NOT_TOLD,
        thread_names=("?",) * min(told.thread_count or 0, _MOST_THREADS),
    )
    if main is None:
        return sample, Missing(told.failure or "no stack of it is shown")
    renamed = tuple(
        msgspec.structs.replace(thread, name="MainThread", frames=_with_hooks(threads, main))
        if thread is main
        else msgspec.structs.replace(thread, name=_other_name(thread.name))
        for thread in threads
    )
    return sample, Stack(pid, renamed)


def _pid(told: ToldProcess, index: int | None) -> int:
    return told.header.pid or (told.threads[index].thread_id if index is not None else None) or 0


def _with_hooks(threads: tuple[ThreadStack, ...], main: ThreadStack) -> tuple[Frame, ...]:
    """The main thread's frames, with those of the thread that backward runs hooks in below them.

    On a GPU autograd has a thread of its own for each device: hooks, and the collectives in them, are seen there and not in `backward`.
    """
    known = meaning(main)
    if known is None or known[0] is not WaitKind.BACKWARD:
        return main.frames
    engine = next((each for each in threads if each is not main and each.frames and not _has_own_start(each)), None)
    return main.frames if engine is None else (*engine.frames, *main.frames)


def _has_own_start(thread: ThreadStack) -> bool:
    """True for a thread that Python started: autograd's own has no such frames."""
    return plain_name(thread.frames[-1]) in {"_bootstrap", "_bootstrap_inner"}


def _other_name(name: str | None) -> str | None:
    return f"{name} (not the main thread)" if name == "MainThread" else name


def _main_index(told: ToldProcess) -> int | None:
    """The main thread: of this kernel id or name, or the one that no other thread started; faulthandler prints it last."""
    threads = told.threads
    if not threads:
        return None
    for wanted in (
        lambda thread: thread.thread_id is not None and thread.thread_id == told.header.pid,
        lambda thread: thread.name == "MainThread",
        lambda thread: bool(thread.frames) and thread.frames[-1].name in {"<module>", "_run_code"},
        lambda thread: bool(thread.frames) and not thread.frames[-1].name.endswith("_bootstrap"),
    ):
        found = [at for at, thread in enumerate(threads) if wanted(thread)]
        if found:
            return found[-1]
    numbers = [thread.thread_id for thread in threads if thread.thread_id is not None]
    return next((at for at, thread in enumerate(threads) if numbers and thread.thread_id == min(numbers)), len(threads) - 1)


def _state(told: ToldProcess, index: int | None) -> str:
    active = told.activity[index] if index is not None else None
    return _NO_STATE if active is None else "R" if active else "S"


def _call(main: ThreadStack | None) -> SystemCall | Missing:
    return (native_call(main.native) if main is not None else None) or _NOT_TOLD
