"""One node of a job as it was heard last: its words in our time, and when it is late by its own measure."""

import msgspec

from rankpatrol.agent.nodes.times import in_our_time
from rankpatrol.agent.nodes.wire import NodeState, Part
from rankpatrol.agent.places import sample_of
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import RankSample
from rankpatrol.judge.records import RankActivity
from rankpatrol.system.clock import Clock

# What a node that says so tells once a second is judged as of the round in which it is read.
_AT_ONCE_S = 1.0
_SELDOM_MOST_S = 60.0
# A clock may be set, and crystals differ by some 100 parts in a million.
_JUMP_S, _DRIFT_S = 5.0, 0.0001


def silent_after_s(every_s: float) -> float:
    """Three words were missed, and an agent that was started again after a kill would be back: it takes three or four seconds."""
    return 3.0 * every_s + 3.0


def late_after_s(every_s: float) -> float:
    """A word is half as long overdue as it takes to come, and a second for the rounds on both sides."""
    return 1.5 * every_s + 1.0


class HeardNode:
    """One node as it was heard last."""

    def __init__(self, state: NodeState, heard_at_s: float, clock: Clock, before: "HeardNode | None") -> None:
        self.state, self.heard_at_s, self.problem = state, heard_at_s, ""
        waited_s = clock.mono_s() - heard_at_s
        shift_s = clock.mono_s() - waited_s - state.at_mono_s
        # Each word was some time on its way: the least of these differences is the nearest to the clocks' own.
        ahead_s = state.at_unix_s - (clock.unix_s() - waited_s)
        jumped = before is not None and abs(before.ahead_s - ahead_s) > _JUMP_S
        self.ahead_s: float = ahead_s if before is None or jumped else max(ahead_s, before.ahead_s - _DRIFT_S)
        self.every_s = min(_SELDOM_MOST_S, max(_AT_ONCE_S, state.every_s))
        self.light = msgspec.structs.replace(
            state.light, marks={rank: in_our_time(mark, shift_s, self.ahead_s) for rank, mark in state.light.marks.items()}
        )
        seen_at_s = None if self.every_s <= _AT_ONCE_S else heard_at_s
        self._seen = tuple(msgspec.structs.replace(each, seen_at_s=seen_at_s) for each in state.light.activities)
        known = before.all_parts if before else {}
        newest = {part.group: _same_or(known.get(part.group), self._told(part)) for part in state.parts}
        vanished = {group: _gone(part) for group, part in (before.all_parts if before else {}).items() if group not in newest}
        self.all_parts: dict[str, Part] = {**dict(list(vanished.items())[-2:]), **newest}

    def part(self, group: str | None) -> Part | None:
        """This node's ranks of a group."""
        return None if group is None else self.all_parts.get(group)

    def age_s(self, now_s: float) -> float:
        """How long ago it was heard."""
        return max(0.0, now_s - self.heard_at_s)

    def is_late(self, now_s: float) -> bool:
        """True where its next word is overdue: it is not waited for as long as the others."""
        return self.age_s(now_s) > late_after_s(self.every_s)

    def is_silent(self, now_s: float) -> bool:
        """True where it has told nothing for several of its intervals."""
        return self.age_s(now_s) > silent_after_s(self.every_s)

    def activities(self, now_s: float) -> tuple[RankActivity, ...]:
        """Its ranks as they were seen last; once its word is overdue, as they stand now for all that is known."""
        if self.every_s <= _AT_ONCE_S or not self.is_late(now_s):
            return self._seen
        return tuple(msgspec.structs.replace(each, seen_at_s=None) for each in self._seen)

    def newest_group(self) -> str | None:
        """The attempt that its light round was over."""
        return self.state.parts[-1].group if self.state.parts else None

    def called(self, group: str | None) -> str:
        """What its ranks call their node."""
        part = self.part(group)
        return part.places[0].node if part and part.places else self.state.node

    def unseen(self, group: str | None, why: str) -> list[RankSample]:
        """Its ranks, of which nothing can be learned now."""
        part = self.part(group)
        return [
            msgspec.structs.replace(
                sample_of(place, Missing(f"node {place.node} does not answer: {why}")),
                exit_status=part.exits[place.rank].exit_status if part and place.rank in part.exits else None,
            )
            for place in (part.places if part else ())
        ]

    def _told(self, part: Part) -> Part:
        exits = {rank: msgspec.structs.replace(seen, ended_unix_s=seen.ended_unix_s - self.ahead_s) for rank, seen in part.exits.items()}
        return msgspec.structs.replace(part, exits=exits)


def _gone(part: Part) -> Part:
    """An attempt that its node does not speak of any more: whoever had not ended is gone."""
    return msgspec.structs.replace(part, gone=tuple(place.rank for place in part.places if place.rank not in part.exits))


def _same_or(known: Part | None, told: Part) -> Part:
    """What has not changed stays the same object: whoever has read it need not read it again."""
    return known if known is not None and known == told else told
