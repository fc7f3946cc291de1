"""From snapshots to the culprit and the cause: the one place that names anybody."""

from collections import Counter
from collections.abc import Callable

from rankpatrol.analysis.causes import REGISTRY, Registry
from rankpatrol.analysis.crash import diagnose_crash
from rankpatrol.analysis.desync import diagnose_desync, recorded_reason
from rankpatrol.analysis.frames import say_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.left_behind import diagnose_left_behind
from rankpatrol.analysis.odd_one_out import suspect_by_stacks
from rankpatrol.analysis.scene import Cause, Scene, say_ranks
from rankpatrol.analysis.several import diagnose_links, diagnose_silence, placed
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Snapshot


def diagnose(history: tuple[Snapshot, ...]) -> Diagnosis:
    """Who the others wait for and why, from one look or several of the same attempt (newest last). Raises ValueError for none.

    The culprit is the rank that ends every chain of waits, never the first to report and never the odd one by count alone.
    """
    if not history:
        raise ValueError("nothing was seen")
    scene = Scene(history)
    found = diagnose_scene(scene, REGISTRY, lambda each: diagnose_desync(each) or suspect_by_stacks(each))
    return placed(found, scene.now.ranks)


def diagnose_scene(scene: Scene, registry: Registry, untie: Callable[[Scene], Diagnosis | None]) -> Diagnosis:
    """The same for a scene that is put together; `untie` is asked where all ranks wait for each other."""
    if gone := tuple(rank for rank, sample in scene.samples.items() if sample.exit_status is not None):
        return (
            diagnose_crash(scene.now, scene)
            or diagnose_left_behind(scene, lambda rank: explain_rank(scene, rank, registry))
            or _undetermined(scene, f"{say_ranks(gone)} has ended, so who waits for whom cannot be told from what is left")
        )
    if scene.now.silent_nodes and (silence := diagnose_silence(scene)) is not None:
        return silence
    if len(scene.samples) < scene.now.world_size:
        return _undetermined(scene, f"only {len(scene.samples)} of {scene.now.world_size} ranks can be seen")
    if not scene.victims and scene.unclear:
        return _undetermined(scene, f"too little is known of {say_ranks(scene.unclear)} to tell who waits for whom: {_crowd(scene)}")
    if not scene.victims:
        return _storage_for_all(scene, registry) or _undetermined(scene, "no rank waits for another: " + _crowd(scene))
    if not scene.awaited and scene.unclear:
        return _undetermined(scene, f"too little is known of {say_ranks(scene.unclear)} to name anybody: {_crowd(scene)}")
    if not scene.awaited:
        return diagnose_links(scene) or untie(scene) or _undetermined(scene, "all ranks wait for each other: " + _crowd(scene))
    causes = [cause for rank in scene.awaited if (cause := explain_rank(scene, rank, registry))]
    return _combine(scene, causes) if causes else _undetermined(scene, f"{say_ranks(scene.awaited)} cannot be seen")


def explain_rank(scene: Scene, rank: int, registry: Registry) -> Cause | None:
    """What the first family of causes that recognises a rank says of it."""
    return next((cause for explain in registry if (cause := explain(scene, rank))), None)


def _combine(scene: Scene, causes: list[Cause]) -> Diagnosis:
    """Several awaited ranks are one answer: while any of them works or may be working, nobody is blamed."""
    for verdict in ("benign_wait", "undetermined"):
        if any(cause.verdict == verdict for cause in causes):
            return _diagnosis(scene, [cause for cause in causes if cause.verdict == verdict], causes)
    return _diagnosis(scene, causes, causes)


def _diagnosis(scene: Scene, leading: list[Cause], causes: list[Cause]) -> Diagnosis:
    first = leading[0]
    blamed = tuple(cause.rank for cause in causes) if first.verdict == "hang" and not _wait_alike(scene, causes) else None
    unnamed = "; who of them is to blame, or who else, is not seen" if blamed is None and first.verdict == "hang" else ""
    victims = scene.victims
    phrases = "; ".join(cause.phrase for cause in leading)
    it = "it" if len(scene.awaited) == 1 else "them"
    return Diagnosis(
        verdict=first.verdict,
        cause=first.cause,
        culprit_ranks=blamed,
        awaited_ranks=scene.awaited if first.verdict != "hang" else None,
        victim_ranks=victims,
        certainty=_certainty(scene, leading),
        sentence=f"{phrases}; {say_ranks(victims)} wait{'s' if len(victims) == 1 else ''} for {it} in {_wait_words(scene)}{unnamed}",
        reasons_for=(
            *(reason for cause in leading for reason in cause.reasons_for),
            *recorded_reason(scene, blamed),
            _victims_reason(scene),
        ),
        reasons_against=(*(reason for cause in leading for reason in cause.reasons_against), *_doubts(scene)),
        suggested=tuple(dict.fromkeys(advice for cause in leading for advice in cause.suggested)),
        phase=_phase(scene),
        not_to_be_ended=_not_to_be_ended(causes),
        place=_place(scene, first.rank),
        process=first.process.id if first.process else None,
        file=first.file,
        file_offset_bytes=first.file_offset_bytes,
        quiet_since_mono_s=_quiet_since(leading),
    )


def _wait_alike(scene: Scene, causes: list[Cause]) -> bool:
    """Several that stand at one line, below a call that shows no frames, as in `store.get()`: they may well wait for a peer, too."""
    waits = [scene.waits[cause.rank] for cause in causes]
    return len(waits) > 1 and all(each.opaque and each.frame == waits[0].frame for each in waits)


def _quiet_since(leading: list[Cause]) -> float | None:
    """Since when all of them have done nothing; None where that is not known of one."""
    since = [cause.quiet_since_mono_s for cause in leading if cause.quiet_since_mono_s is not None]
    return max(since) if len(since) == len(leading) else None


def _storage_for_all(scene: Scene, registry: Registry) -> Diagnosis | None:
    """Nobody waits for a peer, and every rank stands in a file operation: the storage is the culprit, no rank is."""
    causes = [explain_rank(scene, rank, registry) for rank in scene.waits]
    if not causes or any(cause is None or cause.verdict != "hang" or cause.file is None for cause in causes):
        return None
    stuck = [cause for cause in causes if cause is not None]
    return Diagnosis(
        verdict="hang",
        cause="filesystem_stall",
        certainty=Certainty.SUPPORTED,
        sentence=f"all {len(stuck)} ranks wait for storage, rank {stuck[0].rank} among them: {stuck[0].phrase}",
        reasons_for=tuple(cause.phrase for cause in stuck),
        suggested=tuple(dict.fromkeys(advice for cause in stuck for advice in cause.suggested)),
        not_to_be_ended="every rank waits for storage: a new attempt would wait for it as well",
        file=stuck[0].file,
    )


def _not_to_be_ended(causes: list[Cause]) -> str | None:
    """A kill that would not work, or a storage that several ranks wait for: both are for people, not for a restart."""
    reason = next((cause.not_to_be_ended for cause in causes if cause.not_to_be_ended), None)
    if reason is not None:
        return reason
    folders = Counter(cause.file.rpartition("/")[0] for cause in causes if cause.file)
    shared = [folder for folder, count in folders.items() if count > 1]
    return f"several ranks wait for files in {shared[0]}: a new attempt would wait for them as well" if shared else None


_PHASES = {
    WaitKind.CHECKPOINT: "checkpoint",
    WaitKind.COMPILE: "compile",
    WaitKind.START: "initialisation",
    WaitKind.STORE: "initialisation",
}


def _phase(scene: Scene) -> str | None:
    """What the awaited ranks are in, where their stacks tell."""
    phases = {
        _PHASES.get(scene.waits[rank].kind) or ("checkpoint" if scene.is_inside(rank, WaitKind.CHECKPOINT) else None)
        for rank in scene.awaited
    }
    return phases.pop() if len(phases) == 1 else None


def _place(scene: Scene, rank: int) -> str | None:
    frame = scene.waits[rank].frame
    return say_frame(frame) if frame is not None else None


def _certainty(scene: Scene, leading: list[Cause]) -> Certainty:
    """Supported needs the awaited rank's own evidence (two lines) and that of its victims' stacks."""
    seen = not scene.unclear and all(scene.waits[rank].by_stack for rank in scene.victims)
    return Certainty.SUPPORTED if seen and all(cause.lines >= 2 for cause in leading) else Certainty.SUSPECTED


def _wait_words(scene: Scene) -> str:
    """What the victims wait in, in the words of the most of them: `backward (all_reduce of DDP)`, `barrier`."""
    words = Counter(scene.waits[rank].what.removeprefix("waits in ").removeprefix("waits for its peers in ") for rank in scene.victims)
    return " or ".join(word for word, _ in words.most_common(2))


def _victims_reason(scene: Scene) -> str:
    return f"{len(scene.victims)} of {len(scene.samples)} ranks wait for a peer in {_wait_words(scene)}"


def _doubts(scene: Scene) -> list[str]:
    blind = tuple(rank for rank in scene.samples if not scene.waits[rank].by_stack)
    return [f"no Python stack of {say_ranks(blind)} could be read: {scene.waits[blind[0]].what}"] if blind else []


def _crowd(scene: Scene) -> str:
    """The ranks by what they are at."""
    groups: dict[str, list[int]] = {}
    for rank, wait in scene.waits.items():
        groups.setdefault(wait.what, []).append(rank)
    return "; ".join(f"{say_ranks(tuple(ranks))}: {what}" for what, ranks in groups.items())


def _undetermined(scene: Scene, why: str) -> Diagnosis:
    return Diagnosis(verdict="undetermined", cause="unknown", victim_ranks=scene.victims, sentence=why, reasons_against=_unread(scene))


def _unread(scene: Scene) -> tuple[str, ...]:
    """Why no stack was read of a rank of which too little is known; once, since all have the same reason as a rule."""
    stacks = [scene.samples[rank].stack for rank in scene.unclear]
    return tuple(stack.reason for stack in stacks if isinstance(stack, Missing))[:1]
