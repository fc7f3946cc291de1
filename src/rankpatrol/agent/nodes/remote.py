"""The other nodes of a job over an exchange, as the judging agent sees them: their words in our time, our orders in their numbers."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec

from rankpatrol.agent.nodes.heard import HeardNode, late_after_s
from rankpatrol.agent.nodes.others import NodeLine, Sight
from rankpatrol.agent.nodes.times import in_our_time
from rankpatrol.agent.nodes.wire import (
    Ended,
    Greeting,
    Light,
    Look,
    NodeState,
    NotOurs,
    OfGroup,
    OfRanks,
    Part,
    Seen,
    StartNext,
    offered,
    pack,
    state_of,
    unpack,
)
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import FlightRecording, RankSample
from rankpatrol.core.starts import NextStart
from rankpatrol.exchange.port import Exchange, Heard
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import OrderedEnd, ResumePoint
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic

# One that is late already is not waited for as long as the others: what is frozen answers nobody.
_LATE_ANSWER_S = 1.5
LOOK_S, RECORDING_S, LINES_S, HOST_S, NATIVE_S, ORDER_S = 12.0, 5.0, 12.0, 8.0, 9.0, 3.0
_FETCH_S = 10.0
_LOOKS_EVERY_S = 0.1
_GREET_EVERY_S = 4.0
_KEPT = "other-nodes.bin"
_COPIES_AT_ONCE = 8
# Beyond the grace that the shims give their ranks.
_AFTER_GRACE_S = 8.0
T = TypeVar("T")


class OtherNodes:
    """All nodes that were heard on this exchange, but ours."""

    def __init__(self, exchange: Exchange, own: str, scratch: Path, clock: Clock, greet_every_s: float | None = _GREET_EVERY_S) -> None:
        """`scratch` is a local folder for answers that come as files. Nodes that never judge alone need no greeting."""
        self._exchange, self._own, self._scratch, self._clock = exchange, own, scratch, clock
        self._known: dict[str, HeardNode] = {}
        self._heard_since: set[str] = set()
        # Nodes of which no word was understood yet: when they were heard, and why not.
        self._strangers: dict[str, tuple[float, str]] = {}
        self._kept: dict[str, str | None] = {}
        self._states: dict[str, Heard] | None = None
        self._greet_every_s, self._greeted_at_s = greet_every_s, float("-inf")
        self._greeting = Greeting()
        self._greeter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="greeter")
        self._recall()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="other-nodes")

    def parts(self, group: str | None) -> tuple[Part, ...]:
        self._hear()
        found = (node.part(group) for node in self._known.values())
        return tuple(part for part in found if part is not None)

    def light(self, group: str | None) -> Light:
        self._hear()
        now_s = self._clock.mono_s()
        nodes = [node for node in self._known.values() if node.part(group) is not None and node.newest_group() == group]
        lights = [node.light for node in nodes]
        return Light(
            activities=tuple(activity for node in nodes for activity in node.activities(now_s)),
            processes={rank: each for light in lights for rank, each in light.processes.items()},
            marks={rank: each for light in lights for rank, each in light.marks.items()},
            logs={rank: each for light in lights for rank, each in light.logs.items()},
        )

    def look(self, group: str | None, name: str, *, full: bool) -> Callable[[], Sight]:
        asked = pack(Look(group=group or "", full=full, name=name))
        answers = self._pool.submit(self._scatter, self._with(group), "look", asked, LOOK_S)
        return lambda: self._sight(group, answers.result())

    def recordings(
        self, group: str | None, ranks: tuple[int, ...] | None = None, *, lines: bool = False
    ) -> dict[int, FlightRecording | Missing]:
        wanted = {node: there for node in self._with(group) if (there := self._ranks_of(node, group, ranks))}
        asked = {node: pack(OfRanks(group=group or "", ranks=there)) for node, there in wanted.items()}
        deadline_s = LINES_S if lines else RECORDING_S
        found: dict[int, FlightRecording | Missing] = {}
        for node, answer in self._each(asked, "lines" if lines else "recordings", deadline_s).items():
            told = _read(answer, dict[int, FlightRecording | Missing])
            found.update(dict.fromkeys(wanted[node], told) if isinstance(told, Missing) else told)
        return found

    def native(self, group: str | None, rank: int) -> str | Missing:
        node = next((node for node in self._with(group) if self._ranks_of(node, group, (rank,))), None)
        if node is None:
            return Missing(f"no node is known that holds rank {rank}")
        asked = pack(OfRanks(group=group or "", ranks=(rank,)))
        return _read(self._scatter((node,), "native", asked, NATIVE_S)[node], str | Missing)

    def hosts(self) -> dict[str, Any]:
        answers = self._scatter(self._heard(), "host", b"", HOST_S)
        return {node: _read(answer, dict[str, Any]) for node, answer in answers.items()}

    def start_next(self, start: NextStart, group: str | None, after: str | None) -> dict[str, str]:
        said = StartNext(start=start, group=group, after=after, at_unix_s=self._clock.unix_s())
        return self._order(self._heard(), "start_next", pack(said))

    def greet_with(self, *, newest_good: ResumePoint | None = None, start: StartNext | None = None) -> None:
        self._greeting = Greeting(newest_good=newest_good or self._greeting.newest_good, start=start or self._greeting.start)
        self._greeted_at_s = float("-inf")

    def release(self, group: str | None) -> None:
        self._order(self._with(group), "release", pack(OfGroup(group=group or "")))

    def end_attempt(self, group: str | None, grace_s: float) -> Ended:
        nodes = self._with(group)
        answers = self._scatter(nodes, "end_attempt", pack(OfGroup(group=group or "", grace_s=grace_s)), grace_s + _AFTER_GRACE_S)
        ended: list[int] = []
        failed: dict[int, str] = {}
        beyond: dict[int, str] = {}
        for node, answer in answers.items():
            told = _read(answer, Ended)
            if isinstance(told, Missing):
                unheard = beyond if self._known[node].is_silent(self._clock.mono_s()) else failed
                unheard.update(dict.fromkeys(self._ranks_of(node, group, None), f"node {node} does not answer: {told.reason}"))
            else:
                ended += told.ended
                unsaid = dict.fromkeys(self._lives(node, group) - {*told.ended}, f"node {node} knows nothing of this rank")
                failed.update({**unsaid, **told.failed})
        return Ended(ended=tuple(ended), failed=failed, beyond=beyond)

    def end_job(self) -> str:
        running = [node for node in self._heard() if self._known[node].state.ended is None]
        return "; ".join(f"node {node}: {why}" for node, why in self._order(running, "end_job", b"").items())

    def ordered(self, group: str | None) -> OrderedEnd | None:
        states = (self._known[name].state for name in self._with(group))
        return next((state.ordered for state in states if state.ordered is not None), None)

    def paused(self, group: str | None) -> Pause | None:
        states = (self._known[name].state for name in self._with(group))
        return next((state.paused for state in states if state.paused is not None), None)

    def silent(self, group: str | None) -> dict[str, float]:
        now_s = self._clock.mono_s()
        nodes = (self._known[name] for name in self._with(group))
        return {node.called(group): round(node.age_s(now_s), 1) for node in nodes if node.state.ended is None and node.is_silent(now_s)}

    def over(self) -> bool:
        self._hear()
        now_s = self._clock.mono_s()
        return all(node.state.ended is not None or node.is_silent(now_s) for node in self._known.values())

    def lines(self) -> tuple[NodeLine, ...]:
        self._hear()
        now_s = self._clock.mono_s()
        strangers = (NodeLine(node=name, heard_ago_s=round(now_s - at_s, 1), problem=why) for name, (at_s, why) in self._strangers.items())
        known = (
            NodeLine(
                node=name,
                heard_ago_s=round(node.age_s(now_s), 1),
                every_s=node.every_s,
                ranks=tuple(place.rank for place in node.state.parts[-1].places) if node.state.parts else (),
                clock_ahead_s=round(node.ahead_s, 3),
                problem=node.problem,
            )
            for name, node in self._known.items()
        )
        return tuple(sorted((*known, *strangers), key=lambda line: line.node))

    def cut_off(self) -> bool:
        return False

    def newest_groups(self) -> tuple[str, ...]:
        """What the ranks have in common that nodes speak of now, as they were first heard."""
        self._hear()
        groups = (node.newest_group() for node in self._known.values())
        return tuple(dict.fromkeys(group for group in groups if group is not None))

    def wait_for_all(self, deadline_s: float) -> tuple[str, ...]:
        """Until every node that an earlier agent knew is heard again; those that were not, once the deadline passes."""
        until_s = self._clock.mono_s() + deadline_s
        while True:
            self._hear()
            missed = tuple(name for name, node in self._known.items() if name not in self._heard_since and node.state.ended is None)
            if not missed or self._clock.mono_s() >= until_s:
                return missed
            self._clock.sleep(_LOOKS_EVERY_S)

    def _recall(self) -> None:
        """What an earlier agent had heard: whose ranks are in the job is not forgotten with it."""
        with contextlib.suppress(OSError, PatrolError):
            for name, state in unpack((self._scratch / _KEPT).read_bytes(), dict[str, NodeState]).items():
                # As old as it may be without being silent: it has to be heard again, or it counts as late from now on.
                self._known[name] = HeardNode(state, self._clock.mono_s() - late_after_s(state.every_s), self._clock, None)

    def _keep(self) -> None:
        """On the local disk, once an attempt and node."""
        newest = {name: node.newest_group() for name, node in self._known.items()}
        if newest == self._kept:
            return
        self._kept = newest
        with contextlib.suppress(OSError):
            write_atomic(self._scratch / _KEPT, pack({name: node.state for name, node in self._known.items()}))

    def _hear(self) -> None:
        states = self._exchange.states()
        if states is not self._states:  # the same again: nothing has come
            self._states = states
            for name, heard in states.items():
                self._take_in(name, heard)
            self._keep()
        self._greet()

    def _take_in(self, name: str, heard: Heard) -> None:
        known = self._known.get(name)
        if name == self._own or (known is not None and known.heard_at_s == heard.heard_at_mono):
            return
        state = state_of(heard.state)
        if isinstance(state, NodeState):
            self._known[name] = HeardNode(state, heard.heard_at_mono, self._clock, known)
            self._heard_since.add(name)
            self._strangers.pop(name, None)
        elif known is not None:
            known.problem = state.reason
        else:
            self._strangers[name] = (heard.heard_at_mono, state.reason)

    def _greet(self) -> None:
        """A node that hears nothing of us for long is on its own, even where the broker lives."""
        now_s = self._clock.mono_s()
        if self._greet_every_s is not None and now_s - self._greeted_at_s >= self._greet_every_s:
            self._greeted_at_s = now_s
            self._greeter.submit(self._exchange.scatter, tuple(self._known), "hello", self._greeting_now(), self._greet_every_s / 2)

    def _greeting_now(self) -> bytes:
        start = self._greeting.start
        said = None if start is None else msgspec.structs.replace(start, at_unix_s=self._clock.unix_s())
        return pack(msgspec.structs.replace(self._greeting, start=said))

    def _heard(self) -> list[str]:
        self._hear()
        return list(self._known)

    def _with(self, group: str | None) -> list[str]:
        self._hear()
        return [name for name, node in self._known.items() if node.part(group) is not None]

    def _ranks_of(self, name: str, group: str | None, ranks: Iterable[int] | None) -> tuple[int, ...]:
        part = self._known[name].part(group)
        there = tuple(place.rank for place in part.places) if part else ()
        return there if ranks is None else tuple(rank for rank in there if rank in set(ranks))

    def _lives(self, name: str, group: str | None) -> set[int]:
        """Ranks there of whose end nothing is known."""
        part = self._known[name].part(group)
        return {place.rank for place in part.places} - {*part.exits, *part.gone} if part else set()

    def _scatter(self, nodes: Sequence[str], command: str, body: bytes, deadline_s: float) -> dict[str, bytes | Missing]:
        return self._each(dict.fromkeys(nodes, body), command, deadline_s)

    def _each(self, bodies: dict[str, bytes], command: str, deadline_s: float) -> dict[str, bytes | Missing]:
        """All side by side, each with its own body."""
        now_s = self._clock.mono_s()
        late = {node for node in bodies if (known := self._known.get(node)) is not None and known.is_late(now_s)}
        patience_s = {node: min(deadline_s, _LATE_ANSWER_S) if node in late else deadline_s for node in bodies}
        answers = self._exchange.ask_each(bodies, command, patience_s)
        large = {
            node: name for node, answer in answers.items() if not isinstance(answer, Missing) and (name := offered(answer)) is not None
        }
        if large:
            with ThreadPoolExecutor(max_workers=min(_COPIES_AT_ONCE, len(large))) as pool:
                answers.update(zip(large, pool.map(self._fetched, large.keys(), large.values()), strict=True))
        return answers

    def _fetched(self, node: str, name: str) -> bytes | Missing:
        """An answer that is too large for a message comes as a file."""
        with TemporaryDirectory(prefix="answer-", dir=self._scratch) as folder:
            into = Path(folder) / "answer"
            copied = self._exchange.fetch(node, name, into, _FETCH_S)
            return copied if isinstance(copied, Missing) else into.read_bytes()

    def _order(self, nodes: Sequence[str], command: str, body: bytes) -> dict[str, str]:
        """By node, why an order was not carried out."""
        answers = {node: _read(answer, str) for node, answer in self._scatter(nodes, command, body, ORDER_S).items()}
        return {node: answer.reason if isinstance(answer, Missing) else answer for node, answer in answers.items() if answer != ""}

    def _sight(self, group: str | None, answers: dict[str, bytes | Missing]) -> Sight:
        ranks: list[RankSample] = []
        kills: dict[int, str] = {}
        for name, answer in answers.items():
            node, told = self._known[name], _read(answer, Seen)
            if isinstance(told, Missing):
                ranks += node.unseen(group, told.reason)
                continue
            shift_s = self._clock.mono_s() - told.at_mono_s
            ranks += [in_our_time(sample, shift_s, node.ahead_s) for sample in told.ranks]
            kills.update(told.kills)
        return Sight(ranks=tuple(ranks), kills=kills)


def _read(answer: bytes | Missing, kind: type[T] | Any) -> T | Missing | Any:
    if isinstance(answer, Missing):
        return answer
    with contextlib.suppress(PatrolError):
        return unpack(answer, kind)
    return Missing(str(NotOurs(f"its answer is no {kind}")))
