"""All ranks wait: whether they wait in one place, or in several that can never meet."""

import re
from collections.abc import Mapping

from rankpatrol.analysis.frames import meaning, plain_name, say_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.natives import native_meaning
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.analysis.told.scene import ToldScene
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Frame

# Branches that a program takes on one rank, or on a rank's own decision: saving, evaluating, logging.
_SIDE = re.compile(
    r"save|checkpoint|ckpt|state_dict|eval|valid|(^|_)log|report|metric|sample|generat|predict|export|push|dump|best|rank_?0|rank_?zero|"
    r"main_process|master|early_stop|summar|visuali|wandb|print|cleanup",
    re.IGNORECASE,
)
# Ranks of a pipeline stand in different operations by design.
_PIPELINE = re.compile(r"pipeline|schedules?\.py|pipe/engine|forward_backward|p2p", re.IGNORECASE)
# The handle of an operation is waited for: which operation it was, and whether the others are in it, is not said.
_HANDLES = frozenset({"wait", "wait_tensor", "wait_for_unshard", "finish_grad_sync", "finish_param_sync"})
_CERTAIN = frozenset({WaitKind.COLLECTIVE, WaitKind.POINT_TO_POINT})
_MEETINGS = _CERTAIN | {WaitKind.DEVICE, WaitKind.BACKWARD}
# Every step passes through these at its own pace: only that nothing moves makes a fault of it.
_PASSING = frozenset({WaitKind.BACKWARD, WaitKind.DEVICE})
_NO_PLACE = ("/lib/python3", "torch/distributed/c10d_logger.py", "torch/utils/_contextlib.py", "<frozen ")


class Place(Record, frozen=True):
    """One point of the program at which ranks wait: the operation, and the user's frames that lead to it, outermost first."""

    kind: WaitKind
    operation: str
    path: tuple[Frame, ...]

    def say(self) -> str:
        """The place as a sentence names it."""
        own = [frame for frame in self.path if "/torch/" not in frame.file]
        at = (own or list(self.path))[-1:]
        return f"{self.operation or 'a wait'}{f' in {say_frame(at[0])}' if at else ''}"


def untie(scene: Scene) -> Diagnosis | None:
    """The answer where every rank waits for peers; None where the text does not show even that nothing moves."""
    if not isinstance(scene, ToldScene):
        return None
    places = {rank: _place(scene, rank) for rank in scene.victims}
    groups: dict[Place, list[int]] = {}
    for rank, place in places.items():
        groups.setdefault(place, []).append(rank)
    kinds = {place.kind for place in groups}
    if kinds == {WaitKind.TEARDOWN}:
        return _ending(scene)
    if kinds == {WaitKind.POINT_TO_POINT} and len(scene.victims) > 1:
        return _all_transfer(scene, groups)
    if len(groups) == 1:
        return _one_place(scene, next(iter(groups)))
    return _several(scene, groups)


def _place(scene: ToldScene, rank: int) -> Place:
    wait, thread = scene.waits[rank], scene.thread(rank)
    if thread is None:
        return Place(wait.kind, "", ())
    known = meaning(thread)
    native = native_meaning(thread.native)
    operation = plain_name(known[1]) if known else native[1] if native else ""
    return Place(
        wait.kind, operation, tuple(frame for frame in reversed(thread.frames) if not any(part in frame.file for part in _NO_PLACE))
    )


def _ending(scene: ToldScene) -> Diagnosis:
    return Diagnosis(
        verdict="zombie_job",
        cause="teardown_deadlock",
        victim_ranks=scene.victims,
        sentence=f"{say_ranks(scene.victims)} {_be(scene.victims)} at the end of the program and {_do(scene.victims)} not get out of it",
        reasons_for=(_crowd(scene),),
        suggested=("Check that the last checkpoint is whole, then end the job: its work is over",),
    )


def _all_transfer(scene: ToldScene, groups: Mapping[Place, list[int]]) -> Diagnosis:
    words = {place.operation for place in groups}
    onesided = all("recv" in word for word in words) or all("send" in word for word in words)
    return Diagnosis(
        verdict="hang",
        cause="p2p_mismatch",
        victim_ranks=scene.victims,
        certainty=Certainty.SUPPORTED if onesided else Certainty.SUSPECTED,
        sentence=f"{say_ranks(scene.victims)} all wait in transfers with each other, and none of them is elsewhere",
        reasons_for=(_say(groups), *(("all of them wait on the same side of a transfer",) if onesided else ())),
        reasons_against=("who should have sent what is not shown by stacks",),
        suggested=("Compare the order of sends and receives of neighbouring ranks; flight recorders show their counts",),
    )


def _one_place(scene: ToldScene, place: Place) -> Diagnosis | None:
    still = scene.stands_still()
    if place.kind not in _MEETINGS:
        return _nobody_makes_it(scene, place, still) if still else None
    quiet = scene.measured.gpu_busy and scene.measured.power_w
    if len(scene.samples) < 2 or not (still or quiet):
        return None
    if (missing := scene.not_seen_waiting()) is not None:
        return _unseen(scene, place, missing, still)
    return Diagnosis(
        verdict="hang",
        cause="collective_started_everywhere",
        victim_ranks=scene.victims,
        sentence=f"{say_ranks(scene.victims)} all wait in {place.say()} and none of them is missing from it",
        reasons_for=tuple(filter(None, (_crowd(scene), still))),
        reasons_against=("stacks do not show whether all of them are in the same call of that line",),
        suggested=("Look at the links and GPUs between these ranks; flight recorders show who has not started the collective",),
    )


def _unseen(scene: ToldScene, place: Place, missing: str, still: str | None) -> Diagnosis | None:
    """Peers that wait, and ranks of which nothing is known: only a single process that could not be stopped tells something itself."""
    odd = scene.cannot_be_stopped()
    why = f"{say_ranks(scene.victims)} wait in {place.say()}, and {missing}"
    return (
        Diagnosis(
            verdict="hang",
            cause="unknown",
            culprit_ranks=odd,
            victim_ranks=scene.victims,
            sentence=why,
            reasons_for=tuple(filter(None, (_crowd(scene), still))),
            reasons_against=("whoever is not shown may wait with them",),
            suggested=("Look at the state of what is not shown (/proc/PID/status, wchan): stopped, in a file call, or gone",),
        )
        if still
        else None
    )


def _nobody_makes_it(scene: ToldScene, place: Place, still: str) -> Diagnosis:
    return Diagnosis(
        verdict="hang",
        cause="rendezvous_failed" if place.kind in {WaitKind.START, WaitKind.STORE} else "unknown",
        victim_ranks=scene.victims,
        sentence=f"{say_ranks(scene.victims)} all wait in {place.say()} for something that none of them makes",
        reasons_for=(_crowd(scene), still),
        suggested=("Look for a file or a lock left behind by an earlier run",),
    )


def _several(scene: ToldScene, groups: Mapping[Place, list[int]]) -> Diagnosis:
    """Several places: who is named depends on what the branches show, and never on the count alone."""
    odd = _odd(groups)
    operations = {place.operation for place in groups}
    sure = _CERTAIN | {WaitKind.BACKWARD} if scene.stands_still() else _CERTAIN
    certain = all(place.kind in sure for place in groups)
    unsaid = any(place.operation in _HANDLES or place.operation.startswith("ncclComm") for place in groups)
    if odd is not None and certain and odd[0].kind in _CERTAIN and not unsaid and not any(_is_pipeline(place) for place in groups):
        place, rank = odd
        conditional = len(operations) == 1 or place.operation == "barrier" or _is_side(place, groups)
        return _named(scene, groups, rank, "rank_conditional_collective" if conditional else "collective_mismatch_op")
    if odd is not None and odd[0].kind is WaitKind.TEARDOWN and all(place.kind in _CERTAIN for place in groups if place is not odd[0]):
        return _named(scene, groups, odd[1], "teardown_deadlock")
    side = _side_rank(groups) if certain else None
    if side is not None:
        return _named(scene, groups, side, "rank_conditional_collective")
    if not scene.stands_still() and any(_is_passed(scene, place, ranks[0]) for place, ranks in groups.items()):
        return _passing(scene, groups)
    ending = any(place.kind is WaitKind.TEARDOWN for place in groups)
    # Several ranks in one plain line wait for a call below it; one alone may as well do something else.
    mismatch = any(place.kind is WaitKind.COLLECTIVE for place in groups) and all(
        place.kind in _MEETINGS or len(ranks) > 1 for place, ranks in groups.items()
    )
    return _unnamed(scene, groups, "teardown_deadlock" if ending else "collective_mismatch_op" if mismatch else "unknown")


def _is_passed(scene: ToldScene, place: Place, rank: int) -> bool:
    """True for a part of a step: backward, a wait for the GPU, or a line within a model's or an optimizer's call."""
    thread = scene.thread(rank)
    frames = thread.frames if thread is not None and place.kind not in _MEETINGS else ()
    return place.kind in _PASSING or any("/torch/nn/" in frame.file or "/torch/optim/" in frame.file for frame in frames)


def _passing(scene: ToldScene, groups: Mapping[Place, list[int]]) -> Diagnosis:
    return Diagnosis(
        verdict="undetermined",
        cause="unknown",
        victim_ranks=scene.victims,
        sentence=f"ranks are in different parts of a step, as they are at any moment of a running job: {_say(groups)}",
        suggested=("Take a second look a minute later: whether the ranks stand still is what decides",),
    )


def _odd(groups: Mapping[Place, list[int]]) -> tuple[Place, int] | None:
    """The one rank that stands apart from all others, which stand together; at least three ranks make others."""
    if len(groups) != 2:
        return None
    alone = [(place, ranks[0]) for place, ranks in groups.items() if len(ranks) == 1]
    return alone[0] if len(alone) == 1 else None


def _own_branch(place: Place, groups: Mapping[Place, list[int]]) -> tuple[Frame, ...]:
    """The frames of a place that no other place shares."""
    others = {(plain_name(frame), frame.file) for other in groups if other is not place for frame in other.path}
    return tuple(frame for frame in place.path if (plain_name(frame), frame.file) not in others)


def _is_side(place: Place, groups: Mapping[Place, list[int]]) -> bool:
    return any(_SIDE.search(plain_name(frame)) for frame in _own_branch(place, groups))


def _side_rank(groups: Mapping[Place, list[int]]) -> int | None:
    """The single rank in a side branch, where everybody else is in none."""
    side = [ranks for place, ranks in groups.items() if _is_side(place, groups) and not _is_pipeline(place)]
    return side[0][0] if len(side) == 1 and len(side[0]) == 1 else None


def _is_pipeline(place: Place) -> bool:
    return any(_PIPELINE.search(frame.name) or _PIPELINE.search(frame.file) for frame in place.path)


def _named(scene: ToldScene, groups: Mapping[Place, list[int]], rank: int, cause: str) -> Diagnosis:
    others = tuple(each for each in scene.victims if each != rank)
    own = next(place for place, ranks in groups.items() if rank in ranks)
    wait = "waits" if len(others) == 1 else "wait"
    return Diagnosis(
        verdict="hang",
        cause=cause,
        culprit_ranks=(rank,),
        victim_ranks=others,
        sentence=f"rank {rank} waits in {own.say()}, which no other rank has reached; {say_ranks(others)} {wait} elsewhere",
        reasons_for=(_say(groups),),
        reasons_against=("stacks do not show to which process group each collective belongs", *_silent(scene)),
        suggested=(f"Look for a condition on the way to {own.say()} that is true on rank {rank} alone",),
    )


def _unnamed(scene: ToldScene, groups: Mapping[Place, list[int]], cause: str) -> Diagnosis:
    return Diagnosis(
        verdict="hang",
        cause=cause,
        victim_ranks=scene.victims,
        sentence=f"all ranks wait, and in different places: {_say(groups)}; whoever took the wrong way cannot be told from stacks",
        reasons_for=(_say(groups),),
        reasons_against=tuple(_silent(scene)),
        suggested=("Read the flight recorders: they count the collectives of each process group",),
    )


def _silent(scene: ToldScene) -> list[str]:
    return [f"no stack of {say_ranks(scene.unclear)} is shown: {scene.waits[scene.unclear[0]].what}"] if scene.unclear else []


def _say(groups: Mapping[Place, list[int]]) -> str:
    return "; ".join(f"{say_ranks(tuple(ranks))}: {place.say()}" for place, ranks in groups.items())


def _crowd(scene: ToldScene) -> str:
    return "; ".join(f"{say_ranks((rank,))} {wait.what}" for rank, wait in list(scene.waits.items())[:8])


def _be(ranks: tuple[int, ...]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _do(ranks: tuple[int, ...]) -> str:
    return "does" if len(ranks) == 1 else "do"
