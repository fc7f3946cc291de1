"""Times of another node in ours. Monotonic clocks of two machines are never compared: each is shifted by when its word was heard."""

from typing import TypeVar

import msgspec

from rankpatrol.core.snapshot import Marks, RankSample

T = TypeVar("T", Marks, RankSample)


def in_our_time(told: T, shift_s: float, ahead_s: float) -> T:
    """A node's record, its monotonic times moved by `shift_s`, its wall-clock times put back by what its clock is `ahead_s` of ours."""
    if isinstance(told, Marks):
        last, raised = (None if at_s is None else at_s + shift_s for at_s in (told.last_step_at_mono_s, told.raised_at_mono_s))
        since = told.phase_since_mono_s + shift_s
        return msgspec.structs.replace(told, last_step_at_mono_s=last, phase_since_mono_s=since, raised_at_mono_s=raised)
    marks = in_our_time(told.marks, shift_s, ahead_s) if isinstance(told.marks, Marks) else told.marks
    ended = None if told.ended_unix_s is None else told.ended_unix_s - ahead_s
    return msgspec.structs.replace(told, marks=marks, ended_unix_s=ended)
