"""A scene made from a text: who waits for whom where only stacks and a few measurements are known."""

import re
from collections import Counter
from functools import cached_property

import msgspec

from rankpatrol.analysis.causes.loader import LOADER_NAME
from rankpatrol.analysis.causes.storage import waits_for_storage
from rankpatrol.analysis.frames import is_users, meaning, plain_name, say_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.natives import extension_function, native_call, waits_for_gil
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.analysis.told.measured import Measured, draws_full_power, measure, steps_between
from rankpatrol.analysis.told.sample import Told
from rankpatrol.analysis.waits import Wait, main_thread
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Frame, ProcessSample, ThreadStack

# Waits that are for the peers where any rank is elsewhere: the start and the end are common, and so is a file that one rank makes.
_FOR_THE_REST = frozenset({WaitKind.BACKWARD, WaitKind.STORE, WaitKind.TEARDOWN})
_MEETINGS = frozenset({WaitKind.COLLECTIVE, WaitKind.POINT_TO_POINT, WaitKind.DEVICE, WaitKind.BACKWARD})
_POLLS = frozenset({"wait", "poll", "until", "sync", "barrier", "ready", "done", "exists"})
_MEETING_WORDS = frozenset({"wait", "sync", "synchronize", "reduce", "allreduce", "gather", "allgather", "barrier", "broadcast", "scatter"})
_SLEEPS = frozenset({"sleep", "_sleep"})
_SPMD_SHARE = 0.5
_NOT_HELD = re.compile(r"suspend|timed out|no such process|does not exist|exited", re.IGNORECASE)
_SILENT = "sleeps in a place the kernel hides"


class ToldScene(Scene):
    """The latest look of a text, with what its other lines tell."""

    def __init__(self, told: Told) -> None:
        super().__init__(told.history)
        self.told = told

    @cached_property
    def measured(self) -> Measured:
        """What the lines between the stacks measured."""
        return measure(self.told.context)

    @cached_property
    def waits(self) -> dict[int, Wait]:
        """What each rank is at; a rank of which only loader processes are shown waits for them."""
        return {
            rank: self._loader_wait() if self._only_loaders(rank) else self._in_words(rank, wait) for rank, wait in super().waits.items()
        }

    @cached_property
    def victims(self) -> tuple[int, ...]:
        """Ranks that wait for others, and those whose wait is for the rest while any rank is elsewhere."""
        certain = {rank for rank, wait in self.waits.items() if wait.for_peers()}
        likely = {rank for rank in self.waits if rank not in certain and self._waits_for_the_rest(rank)}
        alike = self._in_one_line(certain | likely)
        waiting = certain | likely | alike
        waiting -= self._keeps_all_others(waiting)
        return tuple(rank for rank in self.waits if rank in waiting)

    def _keeps_all_others(self, waiting: set[int]) -> set[int]:
        """Ranks that wait for something of their own (a file, a flag, a quota) while all others, and more of them, meet each other."""
        own = {rank for rank in waiting if self.polls(rank)}
        meeting = {rank for rank in waiting - own if self.waits[rank].kind in _MEETINGS}
        return own if own | meeting == set(self.waits) and len(own) < len(meeting) else set()

    @cached_property
    def _looks(self) -> tuple[dict[int, tuple[Frame, ...]], ...]:
        """The main thread's frames of each rank in each look."""
        return tuple(
            {sample.rank: thread.frames for sample in look.ranks if (thread := main_thread(sample.stack)) is not None}
            for look in self.history
        )

    def thread(self, rank: int) -> ThreadStack | None:
        """The main thread of a rank."""
        return main_thread(self.samples[rank].stack)

    def polls(self, rank: int) -> bool:
        """True where a rank sleeps in a loop of its own that waits for something: a file, a flag."""
        thread = self.thread(rank)
        sleeps = thread is not None and bool(thread.frames) and plain_name(thread.frames[0]) in _SLEEPS
        if thread is None or not (sleeps or _sleeps_in_c(thread)):
            return False
        below = [frame for frame in thread.frames[:3] if is_users(frame)]
        return any(_POLLS & set(plain_name(frame).lower().strip("_").split("_")) for frame in below)

    def family_effort(self, rank: int) -> tuple[str, ...]:
        """What the text shows a rank to have got done: other frames in a later look, busy children, bytes, a bar, power."""
        return (*self._changed(rank), *self._told_to_move(rank), *((power,) if (power := draws_full_power(self.measured, rank)) else ()))

    def not_seen_waiting(self) -> str | None:
        """Which ranks of the known world are in no stack of the text, in words; None where every one is seen."""
        if self.unclear:
            return f"{say_ranks(self.unclear)} is not seen: {self.waits[self.unclear[0]].what}"
        known = max(self.told.world_size or 0, max(self.samples) + 1 if self.told.numbered else 0)
        return f"only {len(self.samples)} of {known} ranks are shown" if known > len(self.samples) else None

    def cannot_be_stopped(self) -> tuple[int, ...] | None:
        """The one rank whose process no tool could hold, where all others could be: it is stopped, in the kernel, or gone."""
        reasons = {rank: self.samples[rank].stack for rank in self.unclear}
        held = [
            rank
            for rank, stack in reasons.items()
            if isinstance(stack, Missing) and (_NOT_HELD.search(stack.reason) or self._is_gone(rank))
        ]
        alone = len(self.unclear) == 1 and len(self.samples) > max(self.samples) and (self.told.world_size or 0) <= len(self.samples)
        return tuple(held) if held and alone else None

    def _is_gone(self, rank: int) -> bool:
        process = self.process_of(rank)
        return process is not None and process.state in {"Z", "X"}

    def has_changed(self, rank: int) -> bool:
        """True where two looks show other functions of a rank."""
        return bool(self._changed(rank))

    def everybody_moves(self) -> bool:
        """True where steps were made between two looks, or every rank is in other functions and some met their peers in between."""
        if steps_between(self.told.around) and not (self.measured.still or self.measured.no_step):
            return True
        if len(self._looks) < 2 or self.stands_still() or not all(self.has_changed(rank) for rank in self.samples):
            return False
        met = {rank for rank in self.samples if _meets(self._looks[-2].get(rank, ())) and rank not in self.victims}
        return bool(met) or self.measured.steps_advance

    def stands_still(self) -> str | None:
        """The line or the looks that say that nothing moves, or None."""
        return self.shows_no_change() or (self.measured.no_step[0] if self.measured.no_step else None)

    def shows_no_change(self) -> str | None:
        """The same, where it holds in a long phase as well: not by a lack of steps alone."""
        if self.measured.still:
            return self.measured.still[0]
        same = len(self.history) > 1 and all(self._is_identical(rank) for rank in self.samples)
        return f"{len(self.history)} looks show the same stacks" if same else None

    def _only_loaders(self, rank: int) -> bool:
        sample = self.samples[rank]
        return isinstance(sample.process, Missing) and any(child.name == LOADER_NAME for child in sample.descendants)

    def _in_words(self, rank: int, wait: Wait) -> Wait:
        """A text does not show what the kernel says of a rank: then it stands somewhere, and no more is claimed."""
        if self.polls(rank) and wait.frame is not None:
            return msgspec.structs.replace(wait, what=f"waits in {say_frame(wait.frame)}")
        if self._waits_for_a_build(rank):
            return msgspec.structs.replace(wait, what="waits in FileBaton.wait (for a build of another process)")
        if wait.kind is WaitKind.START and self._is_at_rendezvous(rank):
            return msgspec.structs.replace(wait, what=f"waits in {wait.what.partition('(')[2].rstrip(')')} (rendezvous)")
        if wait.kind is WaitKind.BACKWARD and not wait.blocked():
            return msgspec.structs.replace(wait, what="waits in backward")
        if (thread := self.thread(rank)) is not None and wait.kind is WaitKind.LOCK and waits_for_gil(thread.native):
            return msgspec.structs.replace(wait, what="waits for the interpreter's lock", by_stack=True)
        if wait.kind is not WaitKind.UNKNOWN:
            return wait
        if self.samples[rank].pid == self.told.cut_pid:
            return msgspec.structs.replace(wait, what="has a stack that the text cuts off", by_stack=False)
        if not wait.by_stack:
            return self._without_frames(rank, wait)
        return msgspec.structs.replace(wait, what=self._standing(rank, wait)) if wait.call is None else wait

    def _standing(self, rank: int, wait: Wait) -> str:
        thread = self.thread(rank)
        own = next((frame for frame in thread.frames if "/lib/python3" not in frame.file), None) if thread is not None else None
        where = f" in {say_frame(own)}" if wait.frame is None and own is not None else ""
        return wait.what.replace(_SILENT, "stands", 1) + where

    def _without_frames(self, rank: int, wait: Wait) -> Wait:
        """What C functions or the kernel's own stack still say of a rank whose Python frames are not shown."""
        process, stack, thread = self.process_of(rank), self.samples[rank].stack, self.thread(rank)
        if thread is not None and (own := extension_function(thread.native)) is not None:
            return msgspec.structs.replace(wait, what=f"stands in {own}", by_stack=True)
        if process is not None and waits_for_storage(process):
            return msgspec.structs.replace(wait, kind=WaitKind.IO, what=f"waits for storage ({process.wait_channel})")
        if process is not None and isinstance(process.wait_channel, str) and "futex" in process.wait_channel:
            return msgspec.structs.replace(wait, kind=WaitKind.LOCK, what="waits for a lock or a peer (futex)")
        return msgspec.structs.replace(wait, what=f"has no stack ({stack.reason})") if isinstance(stack, Missing) else wait

    def _loader_wait(self) -> Wait:
        return Wait(kind=WaitKind.DATA, what="is shown by its loader processes alone", by_stack=False)

    def _waits_for_the_rest(self, rank: int) -> bool:
        wait = self.waits[rank]
        process = self.process_of(rank)
        if wait.kind is WaitKind.START:
            return self._is_at_rendezvous(rank)
        if wait.kind is WaitKind.BACKWARD:
            return process is None or process.state != "D"
        if wait.kind in _FOR_THE_REST or self.polls(rank) or self._waits_for_a_build(rank):
            return True
        return wait.kind in {WaitKind.UNKNOWN, WaitKind.COMPUTE} and self._may_wait_for_a_handle(rank)

    def _is_at_rendezvous(self, rank: int) -> bool:
        """True where a rank meets the others to form a group, and does not only import."""
        known = meaning(thread) if (thread := self.thread(rank)) is not None else None
        return known is not None and "torch/distributed/" in known[1].file

    def _may_wait_for_a_handle(self, rank: int) -> bool:
        """True where the innermost function is named after a meeting: the handle of a collective is waited for in C, without a frame."""
        thread = self.thread(rank)
        leaf = thread.frames[0] if thread is not None and thread.frames else None
        return leaf is not None and "/lib/python3" not in leaf.file and bool(_MEETING_WORDS & set(plain_name(leaf).lower().split("_")))

    def _waits_for_a_build(self, rank: int) -> bool:
        """True where a rank waits for another process of its node that compiles an extension: torch keeps a lock file for that."""
        thread = self.thread(rank)
        return thread is not None and any(frame.file.endswith("torch/utils/file_baton.py") for frame in thread.frames[:2])

    def _in_one_line(self, waiting: set[int]) -> set[int]:
        """Ranks of one program that stand in the very same line, most of them, while others are in a collective: a call below it waits.

        A copy to or from the GPU (`.item()`, `.to()`) has no Python frame of its own and waits for all that is queued before it.
        """
        if not any(self.waits[rank].kind is WaitKind.COLLECTIVE for rank in waiting):
            return set()
        places: Counter[tuple[Frame, ...]] = Counter()
        at: dict[int, tuple[Frame, ...]] = {}
        for rank, wait in self.waits.items():
            thread = self.thread(rank)
            if rank not in waiting and thread is not None and thread.frames and wait.kind in {WaitKind.COMPUTE, WaitKind.UNKNOWN}:
                at[rank] = thread.frames
                places[thread.frames] += 1
        common = {frames for frames, count in places.items() if count > 1 and count >= _SPMD_SHARE * len(self.samples)}
        return {rank for rank, frames in at.items() if frames in common}

    def _changed(self, rank: int) -> tuple[str, ...]:
        """Other functions in a later look; other lines of one function may be a loop that goes nowhere."""
        stacks = [look[rank] for look in self._looks if look.get(rank)]
        if len(stacks) < 2 or _functions(stacks[-1]) == _functions(stacks[-2]):
            return ()
        names = [_leaf(frames) for frames in stacks[-2:]]
        return (f"rank {rank}'s stack changed between two looks, from {names[0]} to {names[1]}",)

    def _is_identical(self, rank: int) -> bool:
        return len({look.get(rank) for look in self._looks[-2:]}) == 1

    def _told_to_move(self, rank: int) -> tuple[str, ...]:
        named = tuple(f"rank {rank}: {what}" for each, what in self.measured.moved if each == rank)
        loose = tuple(what for each, what in self.measured.moved if each is None)
        return named or (loose if self._only_one_elsewhere(rank) else ())

    def _only_one_elsewhere(self, rank: int) -> bool:
        return self.awaited == (rank,) or set(self.waits) == {rank}


def _meets(frames: tuple[Frame, ...]) -> bool:
    known = meaning(ThreadStack(thread_id=None, name=None, active=False, owns_gil=False, frames=frames))
    return known is not None and known[0] in _MEETINGS


def _functions(frames: tuple[Frame, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((frame.name, frame.file) for frame in frames)


def _sleeps_in_c(thread: ThreadStack) -> bool:
    call = native_call(thread.native)
    return call is not None and call.name == "clock_nanosleep"


def _leaf(frames: tuple[Frame, ...]) -> str:
    return next((plain_name(frame) for frame in frames if is_users(frame)), plain_name(frames[0]))


def children(scene: ToldScene, rank: int) -> tuple[tuple[ProcessSample, ThreadStack | None], ...]:
    """The loader processes of a rank with their stacks."""
    sample = scene.samples[rank]
    return tuple((child, main_thread(sample.child_stacks.get(child.id.pid, Missing("not shown")))) for child in sample.descendants)
