"""One story a job, out of what all its logs state: who did what, who failed first, who waits, what the observer saw."""

from bisect import bisect
from functools import cached_property

from rankpatrol.analysis.story_ends import End, ends_of, ranks_in
from rankpatrol.analysis.story_pace import Pace, pace_of, stated_seconds
from rankpatrol.analysis.story_places import Places, places_of
from rankpatrol.analysis.story_waits import Status, Wait, statuses_of, waits_of
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import FILE_ORDERS, Fact, Kind, Stamp, Teller, seconds_between
from rankpatrol.formats.log_echoes import is_echo
from rankpatrol.formats.log_ledger import Ledger, Told
from rankpatrol.formats.log_stamps import stamp_in

_ACTIVITY = (Kind.PROGRESS, Kind.PHASE, Kind.RAISED, Kind.TIMED_OUT, Kind.FINISHED)
# A rank of a pasted log without any prefix may be any of them; more ranks than this are not believed of a number in a text.
_MOST_RANKS = 1_000_000
# Lines of a counter after an exception of a writer that is not known: fewer may be other ranks' last ones.
_WENT_ON = 3
_FOR_LONG = 8
_TERMINAL = (
    Kind.TIMED_OUT,
    Kind.RAISED,
    Kind.GOING_DOWN,
    Kind.EXITED,
    Kind.SIGNALLED,
    Kind.DIED,
    Kind.COLLATERAL,
    Kind.STOPPED_BY_LAUNCHER,
    Kind.KILLED_BY_KERNEL,
    Kind.LOADER_DIED,
)
# A device's or the kernel's complaint that a job may outlive.
_COMPLAINTS = frozenset({
    "xid", "gpu_lost", "gpu_ecc", "illegal_access", "device_assert", "launch_failure", "cuda_oom", "nvlink", "no_device",
})  # fmt: skip
# A process may still write a line or two while it is taken down.
_NEW_ATTEMPT = 4


class Failure(Record, frozen=True, kw_only=True):
    """An exception that is a rank's own, not the echo of another's end."""

    rank: int | None
    local_rank: int | None
    exception: str
    message: str
    place: str | None
    fact: Fact


class Story:
    """What is known, asked by the rules. Computed once each, from the ledger alone."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def told(self, kind: Kind, *words: str) -> list[Told]:
        """All statements of a kind, of some words where given."""
        return [told for told in self.ledger.told(kind) if not words or told.first.word in words]

    def says(self, kind: Kind, *words: str) -> bool:
        """Whether anything of that kind was said."""
        return bool(self.told(kind, *words))

    @cached_property
    def waits(self) -> list[Wait]:
        """Time-outs that ended something; not those of an attempt after which the same rank counts again."""
        return [wait for wait in waits_of(self.ledger) if not self._went_on(wait.rank, wait.fact.order, _NEW_ATTEMPT)]

    @cached_property
    def statuses(self) -> list[Status]:
        return statuses_of(self.ledger)

    @cached_property
    def ends(self) -> list[End]:
        return ends_of(self.ledger)

    @cached_property
    def pace(self) -> Pace | None:
        return pace_of(self.ledger)

    @cached_property
    def exceptions(self) -> list[Failure]:
        """All exceptions that ended something, echoes too, in order; not those after which the same rank went on to count."""
        return [failure for told in self.ledger.told(Kind.RAISED) if not self._survived(failure := self._failure(told.last))]

    def _survived(self, failure: Failure) -> bool:
        """Whether the writer went on: a counter of its own moved after it, or where it is not known, several lines of any."""
        return self._went_on(failure.rank, failure.fact.order, 1)

    def _went_on(self, rank: int | None, order: int, lines: int) -> bool:
        """Whether a rank, or where it is not known any, counted on in so many lines after a place in the same file."""
        if rank is None:
            return self._lines_after(order) >= max(lines, _WENT_ON)
        counter = self.ledger.counters.get(("rank", rank))
        end = (order // FILE_ORDERS + 1) * FILE_ORDERS
        return counter is not None and sum(order < mark.order < end for mark in counter.marks()) >= lines

    def _lines_after(self, order: int) -> int:
        return bisect(self._counted, (order // FILE_ORDERS + 1) * FILE_ORDERS) - bisect(self._counted, order)

    def outlived(self, fact: Fact) -> bool:
        """Whether the writer of a complaint went on to count after it; of a writer without a counter, whether all went on for long."""
        rank = self.rank_of(fact.teller, fact)
        own = rank is None or ("rank", rank) in self.ledger.counters
        return self._went_on(rank if own else None, fact.order, 1 if own else _FOR_LONG)

    def long_ago(self, fact: Fact) -> bool:
        """Whether counters went on for long after this line of its file."""
        return self._lines_after(fact.order) >= _FOR_LONG

    def counted_after(self, fact: Fact) -> bool:
        """Whether any counter moved after this line of its file."""
        return self._lines_after(fact.order) > 0

    @staticmethod
    def comes_before(one: Fact, two: Fact) -> bool | None:
        """By the order of lines in one file, by one clock in two; None where that cannot be said."""
        if one.where.file == two.where.file:
            return one.order < two.order
        if one.at is None or two.at is None or one.at.form != two.at.form:
            return None
        gap = seconds_between(one.at, two.at)
        return gap is not None and gap > 0 if one.at.day is not None else None

    @cached_property
    def moves_on(self) -> bool:
        """Whether all ends and errors are of the past: the counters went on for long after each of them."""
        facts = [told.last for told in self.ledger.told(*_TERMINAL)] + [told.last for told in self.told(Kind.SYMPTOM, *_COMPLAINTS)]
        return bool(facts) and all(self._lines_after(fact.order) >= _FOR_LONG for fact in facts)

    @cached_property
    def _counted(self) -> list[int]:
        """Where all counters' lines stand, in order."""
        return sorted(mark.order for counter in self.ledger.counters.values() for mark in counter.marks())

    @cached_property
    def failures(self) -> list[Failure]:
        """The exceptions that are no echo, in order."""
        return [
            failure for failure in self.exceptions if not is_echo(failure.exception, failure.message, failure.fact.values.get("frames", ""))
        ]

    @cached_property
    def echoes(self) -> list[Failure]:
        own = {id(failure) for failure in self.failures}
        return [failure for failure in self.exceptions if id(failure) not in own]

    @cached_property
    def world_size(self) -> int | None:
        """How many ranks the job has, where a line says so."""
        sizes = []
        for told in self.told(Kind.WORLD):
            size = told.last.number("size") or told.last.number("size2")
            last = told.last.number("last")
            sizes.append(int(size) if size is not None else int(last or 0) + 1)
        sane = [size for size in sizes if 1 < size <= _MOST_RANKS and size > max(self.seen_ranks, default=0)]
        return max(sane) if sane else None

    @cached_property
    def seen_ranks(self) -> frozenset[int]:
        """Global ranks that wrote a line or are named in one."""
        ranks = {key[1] for key in self.ledger.last_seen if key[0] == "rank" and isinstance(key[1], int)}
        ranks |= {wait.rank for wait in self.waits if wait.rank is not None}
        ranks |= {end.rank for end in self.ends if end.rank is not None}
        for told in self.told(Kind.ALIVE):
            ranks |= set(ranks_in(told.first.values.get("ranks", "")))
        return frozenset(rank for rank in ranks if isinstance(rank, int))

    @cached_property
    def ranks(self) -> frozenset[int]:
        """All ranks that must exist: ranks count from 0, so a hole below the highest one is a rank too."""
        highest = max(self.seen_ranks, default=-1)
        return frozenset(range(max(self.world_size or 0, highest + 1)))

    @cached_property
    def one_node(self) -> bool:
        """Whether a local rank is the global one: only where a launcher's table or the world's size says so."""
        hosts = {key[1] for key in self.ledger.last_seen if key[0] == "local" and key[1]}
        pairs = [(end.rank, end.fact.number("local")) for end in self.ends if end.fact.word == "row_rank"]
        return len(hosts) <= 1 and bool(pairs) and all(rank == local for rank, local in pairs)

    @cached_property
    def not_waiting(self) -> int | None:
        """The one rank that the observer does not see waiting in a collective, where it names all others."""
        waiting = {rank for told in self.told(Kind.OBSERVED, "others_wait") for rank in ranks_in(told.first.values["ranks"])}
        everyone = self.ranks | set(range(max(waiting, default=-1) + 1))
        rest = everyone - waiting
        return next(iter(rest)) if len(rest) == 1 and len(waiting) > 1 else None

    def rank_of(self, teller: Teller, fact: Fact | None = None) -> int | None:
        """The global rank of a writer: its own word, its pid's, or its local rank where there is one node."""
        if teller.rank is not None:
            return teller.rank
        inside = fact.number("group_rank") if fact is not None else None
        if inside is not None and (fact is not None and fact.values.get("group") in {None, "0"}):
            return int(inside)
        for rank in (self.rank_of_pid(teller.pid, teller.host), self.places.of_component(teller.component), self._rank_on_its_node(teller)):
            if rank is not None:
                return rank
        return None

    def only_by_its_node(self, teller: Teller) -> bool:
        """Whether a writer's rank is known by its local one alone: another node's table, not given, may list the same."""
        return teller.rank is None and self.rank_of_pid(teller.pid, teller.host) is None and self._rank_on_its_node(teller) is not None

    def rank_of_pid(self, pid: int | None, host: str | None = None) -> int | None:
        """The rank whose process this is, from ends, from lines that carry both, and from tables of the start."""
        if pid is None:
            return None
        found = {end.rank for end in self.ends if end.pid == pid and end.rank is not None}
        found |= {fact.teller.rank for fact in self.ledger.last_seen.values() if fact.teller.pid == pid and fact.teller.rank is not None}
        found |= self.places.of_pid(pid, host)
        return found.pop() if len(found) == 1 else None

    def _rank_on_its_node(self, teller: Teller) -> int | None:
        """The rank of a local one: by the launcher's table of failures, or by a table that says which ranks a node has."""
        if teller.local_rank is None:
            return None
        hosts = {end.rank: end.host for end in self.ends}
        rows = [(int(told.first.values["rank"]), int(told.first.values["local"])) for told in self.told(Kind.EXITED, "row_rank")]
        listed = {
            rank for rank, local in rows if local == teller.local_rank and (teller.host is None or hosts.get(rank) in {None, teller.host})
        }
        if len(listed) == 1:
            return listed.pop()
        return self.places.on_node(teller.host, teller.local_rank) if not listed else None

    @cached_property
    def places(self) -> Places:
        return places_of(self.ledger)

    def _failure(self, fact: Fact) -> Failure:
        return Failure(
            rank=self.rank_of(fact.teller),
            local_rank=fact.teller.local_rank,
            exception=fact.word,
            message=fact.values.get("message", ""),
            place=fact.values.get("place"),
            fact=fact,
        )

    @cached_property
    def last_activity(self) -> Fact | None:
        """The last line that is no mere pulse and no word of the observer."""
        facts = [told.last for told in self.ledger.told(*_ACTIVITY)]
        return max(facts, key=lambda fact: fact.order, default=None)

    @cached_property
    def now(self) -> Stamp | None:
        if nows := self.told(Kind.NOW, "now"):
            return stamp_in(nows[-1].last.values["now"])
        pulses = [told.last for told in self.told(Kind.PULSE) if told.last.at is not None]
        return max(pulses, key=lambda fact: fact.order).at if pulses else None

    @cached_property
    def silence_s(self) -> float | None:
        """For how long nothing came: the observer's word, else from the last line to its clock, or to the last mere pulse."""
        exact = [seconds for told in self.told(Kind.SILENCE, "") if (seconds := stated_seconds(told.last)) is not None]
        if exact:
            return max(exact)
        written = [stamp_in(told.last.values["last"]) for told in self.told(Kind.NOW, "last")]
        gaps = [gap for stamp in written if (gap := seconds_between(stamp, self.now)) is not None and gap >= 0]
        if gaps:
            return min(gaps)
        last = self._last_stamped()
        if last is not None:
            gap = seconds_between(last.at, self.now)
            return gap if gap is None else max(0.0, gap - self._counted_since_s(last))
        return max((seconds for told in self.told(Kind.SILENCE, "any") if (seconds := stated_seconds(told.last)) is not None), default=None)

    def _counted_since_s(self, fact: Fact) -> float:
        """For how long bars without stamps went on after the last stamp, by the clocks that they carry themselves."""
        spans = []
        for counter in self.ledger.counters.values():
            clocks = [
                mark.elapsed_s for mark in counter.marks() if mark.order > fact.order and mark.at is None and mark.elapsed_s is not None
            ]
            spans += [clocks[-1] - clocks[0]] if len(clocks) > 1 and clocks == sorted(clocks) else []
        return max(spans, default=0.0)

    def _last_stamped(self) -> Fact | None:
        if self.now is None:
            return None
        seen = [fact for fact in self.ledger.last_seen.values() if fact.at is not None and fact.kind not in {Kind.NOW, Kind.PULSE}]
        gaps = [(gap, fact) for fact in seen if (gap := seconds_between(fact.at, self.now)) is not None and gap >= 0]
        return min(gaps, key=lambda pair: pair[0])[1] if gaps else None

    @cached_property
    def goes_on(self) -> bool:
        """Whether the observer says that processes live on, or that nothing came for a while, after the last failure."""
        failed = [told.first.order for told in self.ledger.told(Kind.RAISED, Kind.TIMED_OUT, Kind.SYMPTOM)]
        seen = [told.last.order for told in self.ledger.told(Kind.ALIVE, Kind.SILENCE)]
        return bool(seen) and max(seen) >= max(failed, default=0)

    @cached_property
    def went_down(self) -> bool:
        """Whether any process is said to have ended, or was about to."""
        if self.says(Kind.GOING_DOWN) or self.says(Kind.STOPPED_BY_LAUNCHER) or self.says(Kind.DIED) or self.says(Kind.SIGNALLED):
            return True
        if self.exceptions:
            return True
        return any(end.code not in {0, None} or end.signal is not None for end in self.ends)

    @cached_property
    def sees_a_job(self) -> bool:
        """Whether any line is a job's own, and not only a kernel's, a switch's or a monitor's."""
        if self.seen_ranks or self.waits or self.exceptions or self.ends or self.pace is not None:
            return True
        if self.says(Kind.NAMED_LAGGING) or any(told.first.teller.pid is not None for told in self.told(Kind.SYMPTOM)):
            return True
        return (
            self.says(Kind.PHASE)
            or self.says(Kind.MISMATCH)
            or self.says(Kind.BARRIER_ABSENT)
            or self.says(Kind.WATCHDOG_STUCK)
            or self.says(Kind.COLLATERAL)
            or self.says(Kind.DIED)
            or self.says(Kind.ALIVE)
            or self.says(Kind.GOING_DOWN)
        )

    def verdict(self, otherwise: str = "crash") -> str:
        """`hang` where the observer still sees processes, `crash` where one ended, `node_fault` where no job is seen at all."""
        if not self.sees_a_job:
            return "node_fault"
        if self.goes_on:
            return "hang"
        return "crash" if self.went_down else otherwise

    def others_suffer(self, rank: int | None) -> bool:
        """Whether somebody else waits, timed out, or lost a connection."""
        if any(wait.rank != rank for wait in self.waits) or self.echoes:
            return True
        return any(told.first.teller.rank != rank for told in self.told(Kind.COLLATERAL)) or self.says(Kind.BARRIER_ABSENT)
