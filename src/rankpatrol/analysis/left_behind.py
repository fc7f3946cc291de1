"""Ranks that do not go after the others have ended well: the training is done, and nobody waits for them any more."""

from collections.abc import Callable

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis


def diagnose_left_behind(scene: Scene, explain: Callable[[int], Cause | None]) -> Diagnosis | None:
    """Speaks where all who have ended did so with exit code 0, and none of the rest waits for a peer.

    One that still works (a last save, an upload) is left alone; one of which nothing is known is not accused.
    """
    ended = tuple(rank for rank, sample in scene.samples.items() if sample.exit_status is not None)
    left = tuple(rank for rank in scene.samples if rank not in ended)
    if not left or any(scene.samples[rank].exit_status != 0 for rank in ended) or set(left) & set(scene.victims):
        return None
    causes = [explain(rank) for rank in left]
    seen = [cause for cause in causes if cause is not None]
    if len(seen) < len(left) or any(scene.waits[rank].kind is WaitKind.GONE for rank in left):
        return None
    working = [cause for cause in seen if cause.verdict == "benign_wait"]
    unknown = [cause for cause in seen if cause.verdict == "undetermined"]
    if unknown and not working:
        return _undetermined(ended, unknown)
    leading = working or seen
    phrases = "; ".join(cause.phrase for cause in leading)
    certain = all(cause.lines >= 2 for cause in leading) and all(scene.waits[rank].by_stack for rank in left)
    return Diagnosis(
        verdict="benign_wait" if working else "hang",
        cause=working[0].cause if working else "teardown_deadlock",
        culprit_ranks=None if working else left,
        awaited_ranks=left if working else None,
        certainty=Certainty.SUPPORTED if certain else Certainty.SUSPECTED,
        sentence=f"{say_ranks(ended)} ended well, and {phrases}",
        reasons_for=tuple(reason for cause in leading for reason in cause.reasons_for),
        reasons_against=tuple(reason for cause in leading for reason in cause.reasons_against),
        suggested=() if working else ("The training itself is done: look for a thread or a child that its end waits for",),
        phase="teardown",
        not_to_be_ended=next((cause.not_to_be_ended for cause in seen if cause.not_to_be_ended), None),
        process=leading[0].process.id if leading[0].process else None,
        quiet_since_mono_s=leading[0].quiet_since_mono_s if len(leading) == 1 else None,
    )


def _undetermined(ended: tuple[int, ...], unknown: list[Cause]) -> Diagnosis:
    return Diagnosis(
        verdict="undetermined",
        cause="unknown",
        awaited_ranks=tuple(cause.rank for cause in unknown),
        sentence=f"{say_ranks(ended)} ended well, and {'; '.join(cause.phrase for cause in unknown)}",
        reasons_against=tuple(reason for cause in unknown for reason in cause.reasons_against),
        phase="teardown",
    )
