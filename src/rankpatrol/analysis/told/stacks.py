"""The answer to pasted stacks: the same culprit finder as for a live job, on what a text can tell."""

import re

import msgspec

from rankpatrol.analysis.causes.storage import waits_for_storage
from rankpatrol.analysis.diagnose import diagnose_scene, explain_rank
from rankpatrol.analysis.scene import Cause, say_ranks
from rankpatrol.analysis.told.causes import TOLD_REGISTRY
from rankpatrol.analysis.told.divergence import untie
from rankpatrol.analysis.told.sample import snapshots
from rankpatrol.analysis.told.scene import ToldScene
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.formats.stack_text import read_stacks

_FATAL = re.compile(r"Fatal Python error: (\w[\w ]*)")


def diagnose_stacks(text: str) -> Diagnosis | None:
    """Who the others wait for by the stacks in a text, or None where it holds none."""
    read = read_stacks(text)
    told = snapshots(read) if read is not None else None
    if told is None:
        return None
    scene = ToldScene(told)
    found = _fatal(scene) or _raised(scene) or _answer(scene)
    return _with_gaps(found, scene) if told.numbered else _unnumbered(found, scene)


def _with_gaps(found: Diagnosis, scene: ToldScene) -> Diagnosis:
    """The same with a word of doubt where numbers are left out: the text may show a selection of ranks."""
    least = max(scene.samples) + 1
    if least == len(scene.samples):
        return found
    note = f"stacks of {len(scene.samples)} of at least {least} ranks are shown"
    return msgspec.structs.replace(found, reasons_against=(*found.reasons_against, note))


def _answer(scene: ToldScene) -> Diagnosis:
    if scene.everybody_moves():
        return _moving(scene)
    if scene.victims and not scene.awaited and scene.unclear and (found := untie(scene)) is not None and len(scene.victims) > 1:
        return found
    if not scene.victims or not scene.awaited:
        alone = _without_victims(scene) if not scene.victims else None
        if alone is not None:
            return alone
    return diagnose_scene(scene, TOLD_REGISTRY, untie)


def _moving(scene: ToldScene) -> Diagnosis:
    steps = ("lines between the stacks count steps upwards",) if scene.measured.steps_advance else ()
    moved = all(scene.has_changed(rank) for rank in scene.samples)
    changed = (f"the stacks of all {len(scene.samples)} ranks changed, through a meeting of theirs",) if moved else ()
    return Diagnosis(
        verdict="healthy",
        cause="none",
        certainty=Certainty.SUPPORTED if steps else Certainty.SUSPECTED,
        sentence=f"{say_ranks(tuple(scene.samples))} went on between two looks",
        reasons_for=(*changed, *steps),
        reasons_against=() if steps else ("how fast they get on is not shown",),
    )


def _without_victims(scene: ToldScene) -> Diagnosis | None:
    """Nobody waits for a peer: what each rank is at speaks for itself, where all say the same or a loader process is caught."""
    causes = [cause for rank in scene.waits if (cause := explain_rank(scene, rank, TOLD_REGISTRY)) is not None]
    caught = [cause for cause in causes if cause.verdict == "hang" and cause.cause in _PROVABLE_ALONE]
    words = {(cause.verdict, cause.cause) for cause in causes}
    if caught and len(caught) < len(scene.waits):
        return _alone(scene, caught)
    if not scene.stands_still() and all(cause.cause == _SLOW_OR_STUCK and not scene.samples[cause.rank].descendants for cause in causes):
        return None
    if len(words) == 1 and len(causes) == len(scene.waits) and causes[0].cause in _SAYABLE:
        return _alone(scene, causes)
    return None


# A rank without a peer that waits for its next batch is at what every step begins with.
_SLOW_OR_STUCK = "data_loader_worker_stuck"
_PROVABLE_ALONE = frozenset(
    {"data_loader_fork_lock", "data_loader_worker_stuck", "filesystem_stall", "gil_held", "download_stall", "rank_stopped"}
)
_SAYABLE = _PROVABLE_ALONE | {"checkpoint_io_slow", "compile_or_jit", "model_load", "rank0_preprocessing", "rank0_eval"}


def _alone(scene: ToldScene, causes: list[Cause]) -> Diagnosis:
    first = causes[0]
    everybody = len(causes) > 1 and len(causes) == len(scene.waits)
    ranks = tuple(cause.rank for cause in causes)
    named = None if everybody else ranks
    hang = first.verdict == "hang"
    return Diagnosis(
        verdict=first.verdict,
        cause=_for_all(causes) if everybody else first.cause,
        culprit_ranks=named if hang else None,
        awaited_ranks=None if hang else named,
        sentence=first.phrase if not everybody else f"{say_ranks(ranks)} alike: {first.phrase}",
        reasons_for=tuple(reason for cause in causes[:_MOST_SAID] for reason in cause.reasons_for),
        reasons_against=(*first.reasons_against, *(("no other rank is shown",) if len(scene.samples) == 1 else ())),
        suggested=first.suggested,
        not_to_be_ended=first.not_to_be_ended,
        process=first.process.id if first.process else None,
        file=first.file,
        file_offset_bytes=first.file_offset_bytes,
    )


_MOST_SAID = 8


def _for_all(causes: list[Cause]) -> str:
    """What all ranks share is not one rank's: an evaluation of all, a storage behind all loader processes."""
    if all(cause.process is not None and (cause.process.state == "D" or waits_for_storage(cause.process)) for cause in causes):
        return "filesystem_stall"
    return "long_eval" if causes[0].cause == "rank0_eval" else causes[0].cause


def _fatal(scene: ToldScene) -> Diagnosis | None:
    """What a fault handler wrote on the way out: that process is dead.

    An abort names nobody: torch's watchdog aborts whoever has waited too long, and the stacks of several ranks say more than that.
    """
    dead = [(rank, found[1], line) for rank, line in scene.told.fatal if (found := _FATAL.search(line))]
    faults = [(rank, cause, line) for rank, word, line in dead if (cause := _fault(word, scene)) is not None]
    if not faults:
        return _aborted(scene) if dead and len(scene.samples) == 1 else None
    ranks = {rank for rank, _, _ in faults if rank is not None}
    return Diagnosis(
        verdict="crash",
        cause=faults[0][1],
        culprit_ranks=tuple(ranks) if len(faults) == 1 and ranks else None,
        sentence=f"{'a process' if not ranks else say_ranks(tuple(ranks))} died: {faults[0][2]}",
        reasons_for=tuple(line for _, _, line in faults),
    )


_ERRORS = (
    (re.compile(r"OutOfMemoryError|CUDA out of memory"), "gpu_oom"),
    (re.compile(r"illegal memory access"), "cuda_illegal_access"),
)


def _raised(scene: ToldScene) -> Diagnosis | None:
    """A rank whose traceback ends in an error has left: the others wait for it in vain, and nothing else needs to be wrong."""
    errors = dict(scene.told.raised)
    waiting = tuple(rank for rank in scene.victims if rank not in errors)
    if not errors or not waiting or len(errors) + len(waiting) < len(scene.samples):
        return None
    rank, error = next(iter(errors.items()))
    cause = next((word for pattern, word in _ERRORS if pattern.search(error)), "rank_exception_peers_wait")
    return Diagnosis(
        verdict="hang",
        cause=cause,
        culprit_ranks=tuple(errors),
        victim_ranks=waiting,
        sentence=f"rank {rank} raised {error[:120]}; {say_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for it",
        reasons_for=tuple(f"rank {each} raised {line}" for each, line in errors.items()),
        suggested=("Correct what raised: the collectives that wait are its effect",),
    )


def _fault(word: str, scene: ToldScene) -> str | None:
    if word.startswith("Segmentation fault"):
        return "sigsegv"
    if word.startswith("Bus error"):
        loaders = any(child for sample in scene.samples.values() for child in sample.descendants)
        return "data_worker_killed_shm" if loaders else "unknown"
    return None


def _aborted(scene: ToldScene) -> Diagnosis:
    line = scene.told.fatal[0][1]
    return Diagnosis(
        verdict="crash", cause="sigabrt", sentence=f"a process died: {line}; who made it abort is not shown", reasons_for=(line,)
    )


_LOCAL = "the numbers of the text are local ranks: on which node each is, it does not say"


_ONLY_ONE = "one process is shown, and it waits for no other: "
_OF_ALL = "Take the stacks of all ranks at one moment: rankpatrol capture --pid PID on each node, or a py-spy dump of each"
_RANKS = re.compile(r"(?<!local )\branks? (\d+(?:-\d+)?(?:(?:, | and )\d+(?:-\d+)?)*)(?![\w.])")


def _unnumbered(found: Diagnosis, scene: ToldScene) -> Diagnosis:
    """The same where the text names no ranks: processes are told by their pids, and nobody gets a rank it may not have."""
    note = _LOCAL if scene.told.local else "the text names no ranks"
    named = msgspec.structs.replace(
        found,
        culprit_ranks=None,
        awaited_ranks=None,
        victim_ranks=(),
        sentence=_processes_in(found.sentence, scene),
        reasons_for=tuple(_processes_in(each, scene) for each in found.reasons_for),
        reasons_against=(*(_processes_in(each, scene) for each in found.reasons_against), note),
        suggested=tuple(_processes_in(each, scene) for each in found.suggested),
    )
    if len(scene.samples) == 1:
        named = msgspec.structs.replace(named, sentence=named.sentence.replace("no rank waits for another: ", _ONLY_ONE))
    return named if named.suggested or found.verdict != "undetermined" else msgspec.structs.replace(named, suggested=(_OF_ALL,))


def _processes_in(words: str, scene: ToldScene) -> str:
    """Where the count in the text's order stands for a rank, the processes that are meant."""
    return _RANKS.sub(lambda seen: _processes(seen[1], scene), words)


def _processes(numbers: str, scene: ToldScene) -> str:
    if scene.told.local:
        return f"local rank{'' if numbers.isdecimal() else 's'} {numbers}"
    ranks = [rank for part in re.split(r", | and ", numbers) for rank in _span(part) if rank in scene.samples]
    if len(scene.samples) == 1 and not scene.samples[ranks[0] if ranks else 0].pid:
        return "the process"
    many = "es" if len(ranks) > 1 else ""
    pids = [scene.samples[rank].pid for rank in ranks]
    if pids and all(pids) and len(set(pids)) == len(pids):
        shown = [str(pid) for pid in pids[:_MOST_SAID]]
        more = f" and {len(pids) - _MOST_SAID} more" if len(pids) > _MOST_SAID else ""
        return f"process{many} {', '.join(shown)}{more}"
    return f"process{many} no. {', '.join(str(rank + 1) for rank in ranks[:_MOST_SAID]) or numbers} of the text"


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), min(int(last or first), _HIGHEST) + 1)


_HIGHEST = 1 << 20
