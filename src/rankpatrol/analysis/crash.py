"""Who ended first, and of what; everybody else's end is its echo."""

from collections import Counter

from msgspec.structs import replace

from rankpatrol.analysis.crash_causes import cause_of
from rankpatrol.analysis.ends import ENDS_BY_ITSELF, SIGTERM, End, end_of
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.left_early import left_early, pending
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.snapshot import Marks, RankSample, Snapshot
from rankpatrol.formats.failures import SIZES_DISAGREE

_SIGABRT = -6
# Victims of a broken connection fail within moments of each other.
_CLEARLY_S = 0.5


def diagnose_crash(snapshot: Snapshot, scene: Scene | None = None) -> Diagnosis | None:
    """The first failing rank and its cause, or None while no rank has ended in a way that ends the job.

    First is by the shims' times, but a rank whose log only echoes another's end never is: with gloo a victim may well exit before its
    peers' sockets are even closed. A rank whose probe says that its program has ended with an exception has failed, though its
    interpreter goes down for seconds yet, in which its victims may be gone already. A rank that left with exit code 0 while others wait
    for it is the first cause of theirs. `scene`: the looks that led to this one, where there were some.
    """
    scene = scene or Scene((snapshot,))
    ends = sorted((end for sample in snapshot.ranks if (end := end_of(snapshot, sample)) is not None), key=lambda end: end.at_unix_s)
    failed = [end for end in ends if end.status != 0]
    if not failed:
        return left_early(scene, ends)
    own = [end for end in failed if end.first_cause()]
    # Whoever was told to end was told so by somebody: its launcher does that to all once one has failed.
    told_to_end = [end for end in own if end.status == SIGTERM]
    by_themselves = [end for end in own if end.status != SIGTERM]
    if not by_themselves and (vanished := _not_told(scene, failed)):
        return _vanishing(vanished, failed)
    if not own:
        return left_early(scene, ends) or _first_of_doubtful(snapshot, failed) or _echoes_only(failed)
    return _crashed(snapshot, (by_themselves or told_to_end)[0], failed, by_themselves)


def _not_told(scene: Scene, failed: list[End]) -> tuple[int, ...]:
    """Ranks that are gone without a word of their shim: killed with it, or not told yet. Whoever raised has told why it goes."""
    known = {end.rank for end in failed} | {rank for rank, sample in scene.samples.items() if _raised(sample)}
    return tuple(
        rank
        for rank, wait in scene.waits.items()
        if wait.kind is WaitKind.GONE and scene.samples[rank].exit_status is None and rank not in known
    )


def _raised(sample: RankSample) -> bool:
    return isinstance(sample.marks, Marks) and sample.marks.raised_at_mono_s is not None


def _vanishing(gone: tuple[int, ...], failed: list[End]) -> Diagnosis:
    others = tuple(end.rank for end in failed)
    return Diagnosis(
        verdict="crash",
        cause="sigkill",
        culprit_ranks=gone,
        victim_ranks=others,
        certainty=Certainty.SUPPORTED,
        sentence=f"{say_ranks(gone)} vanished without a word, and {say_ranks(others)} ended of it",
        reasons_for=(
            f"no shim is left to say how {say_ranks(gone)} ended: only SIGKILL, to the shim as well, leaves none",
            f"{say_ranks(others)} only echoed it, or were told to end",
        ),
        reasons_against=("who killed it is not seen",),
        suggested=("Look for the OOM killer in the kernel log, and for whoever kills process groups on this node",),
        not_to_be_ended=ENDS_BY_ITSELF,
    )


def _crashed(snapshot: Snapshot, first: End, failed: list[End], own: list[End]) -> Diagnosis:
    """Where others failed just as the first one did, each by itself, they are culprits too; where all did, nobody is the odd one out."""
    if first.status == _SIGABRT and any(SIZES_DISAGREE.search(line) for line in first.tail):
        return _sizes_disagree(snapshot, first)
    cause, phrase, reasons, suggested = cause_of(snapshot, first)
    alike = tuple(sorted(end.rank for end in own if end is first or end.is_like(first)))
    also = tuple(sorted(end.rank for end in own if end.rank not in alike and end.status > 0))
    others = tuple(end.rank for end in failed if end.rank not in alike)
    alive = tuple(sample.rank for sample in snapshot.ranks if sample.exit_status is None and sample.rank not in {*alike, *others})
    all_of_them = 1 < len(alike) == max(snapshot.world_size, len(snapshot.ranks))
    return Diagnosis(
        verdict="crash",
        cause=cause,
        culprit_ranks=None if all_of_them else alike,
        victim_ranks=tuple(sorted((*others, *alive))),
        certainty=Certainty.SUPPORTED if first.goes_down else Certainty.PROVED,
        sentence=f"{say_ranks(alike)} {phrase}{_of_the_others(alike, also, tuple(rank for rank in others if rank not in also))}",
        reasons_for=(
            *reasons,
            *(("its interpreter has not gone down yet",) if first.goes_down else ()),
            *(f"rank {end.rank} ended {end.at_unix_s - first.at_unix_s:+.2f} s from it" for end in failed if end != first),
        ),
        suggested=suggested,
        not_to_be_ended=ENDS_BY_ITSELF,
        place=first.place(),
        failure=phrase,
    )


def _of_the_others(alike: tuple[int, ...], also: tuple[int, ...], echoes: tuple[int, ...]) -> str:
    """Only who echoes another's end, or was told to end, is said to have ended of it."""
    each = ", each by itself" if len(alike) > 1 else ""
    as_well = f"; {say_ranks(also)} failed otherwise" if also else ""
    return each + as_well + (f"; {say_ranks(echoes)} ended of it" if echoes else "")


def _sizes_disagree(snapshot: Snapshot, first: End) -> Diagnosis:
    """Gloo aborts whoever gets more than it expects: that is the odd rank, or a healthy neighbour of it. The others' recordings tell."""
    sizes = {sample.rank: entry.input_sizes for sample in snapshot.ranks if (entry := pending(sample)) is not None}
    common = Counter(sizes.values()).most_common(1)
    odd = tuple(rank for rank, size in sizes.items() if size != common[0][0]) if common else ()
    agree = len(sizes) - len(odd)
    named = (first.rank,) if not odd and agree > 1 else odd if len(odd) == 1 and agree > 1 else None
    others = tuple(sample.rank for sample in snapshot.ranks if sample.rank not in (named or ()))
    who = say_ranks(named) if named else "a rank"
    return Diagnosis(
        verdict="crash",
        cause="collective_mismatch_shape",
        culprit_ranks=named,
        victim_ranks=others,
        certainty=Certainty.PROVED if named else Certainty.SUPPORTED,
        sentence=f"{who} brought another size to a collective than the others; rank {first.rank} was aborted by gloo for it",
        reasons_for=(
            f"rank {first.rank} was sent a message of another size than it expected (gloo, SIGABRT)",
            *((f"{agree} ranks stand in a collective of one size, {common[0][0]}",) if agree > 1 else ()),
        ),
        suggested=("Look for a tensor whose size depends on the rank or on its data: a last batch, a variable length",),
        not_to_be_ended=ENDS_BY_ITSELF,
    )


def _first_of_doubtful(snapshot: Snapshot, failed: list[End]) -> Diagnosis | None:
    """Where all sound like echoes and everybody is seen: the one that failed well before the others, in words that no transport uses."""
    first = failed[0]
    unseen = len(snapshot.ranks) < snapshot.world_size or any(end.failure.timed_out for end in failed)
    if unseen or first.failure.transport or first.failure.exception is None:
        return None
    if any(end.at_unix_s - first.at_unix_s < _CLEARLY_S for end in failed[1:]):
        return None
    return replace(_crashed(snapshot, first, failed, [first]), certainty=Certainty.SUSPECTED)


def _echoes_only(failed: list[End]) -> Diagnosis:
    timed_out = tuple(end.rank for end in failed if end.failure.timed_out)
    return Diagnosis(
        verdict="crash",
        cause="unknown",
        victim_ranks=tuple(end.rank for end in failed),
        sentence=f"{say_ranks(tuple(end.rank for end in failed))} ended of another rank's end, which is not seen here",
        reasons_for=(f"the process group's own time-out ended {say_ranks(timed_out)}" if timed_out else "their logs only echo it",),
        not_to_be_ended=ENDS_BY_ITSELF,
    )
