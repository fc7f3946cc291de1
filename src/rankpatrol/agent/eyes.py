"""The agent's two ways of looking: light, once a second, and close, when something is odd."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rankpatrol.agent.joining import Joining
from rankpatrol.agent.log_watch import LogWatch
from rankpatrol.agent.nodes.others import Alone, Others, Sight
from rankpatrol.agent.places import sample_of
from rankpatrol.agent.roster import Attempt
from rankpatrol.agent.within import lines_of, locks_of, marks_of, recordings_of, with_known_lines
from rankpatrol.collect.processes import Glances, process_tree, sample_process
from rankpatrol.collect.ranks import RankRecord, observe, with_connections, with_stacks
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import FlightRecording, LogSample, Marks, ProcessGroup, ProcessSample, RankSample, Snapshot
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.system.clock import Clock
from rankpatrol.system.process import is_hidden

_STACKS_S = 8.0
_LOG_S = 1.0
# A local file takes milliseconds; one that does not answer costs a round no more than this.
_LIGHT_LOG_S = 0.05
# A minute of looks: a loop is told from work by what never changes in all of them.
_LOOKS_KEPT = 12
# A look at 8000 ranks and their loaders is 200 MB: of that many only as many are kept as tell a spin (analysis/work.py).
_MANY_RANKS, _LOOKS_OF_MANY = 2048, 5
_FRESH_LOOK_S = 2.0
_ALONE = Alone()
_NOT_SEEN = Missing("not seen in this round")
_NOT_ASKED = Missing("no thread of it was asked to take the interpreter's lock")


class Eyes:
    """What is seen of the current attempt."""

    def __init__(self, job: str, job_dir: Path, clock: Clock, others: Others = _ALONE) -> None:
        self._job, self._job_dir, self._clock, self.others = job, job_dir, clock, others
        self._count = 0
        self._logs = LogWatch(clock)
        self._glances = Glances()
        self._joining = Joining()
        self._steps: dict[int, int] = {}
        self._places: dict[int, RankPlace] = {}
        self._full_at_s: float | None = None
        self._groups: dict[int, tuple[ProcessGroup, ...]] = {}
        self._asked_for_lines = False
        self._lined: dict[int, FlightRecording] = {}
        self._locks: dict[int, bool | Missing] = {}
        self.attempt: Attempt | None = None
        # What the last light round saw of the ranks that live.
        self.processes: dict[int, ProcessSample] = {}
        self.marks: dict[int, Marks] = {}
        self.logs: dict[int, LogSample] = {}
        # What the kernels of other nodes wrote of processes they killed, at the last full look.
        self.kills_elsewhere: dict[int, str] = {}
        self.looks: deque[Snapshot] = deque(maxlen=_LOOKS_KEPT)

    def begin(self, attempt: Attempt) -> None:
        """A new attempt: what was seen of the last one explains nothing of it."""
        self.attempt = attempt
        self._steps.clear()
        self._groups.clear()
        self._asked_for_lines = False
        self._lined.clear()
        self._glances.forget()
        self._joining.forget()
        self.calm()

    def light(self) -> tuple[RankActivity, ...]:
        """One light round: a few files of /proc and the end of a log for each rank. One that is hidden from us is left out."""
        self.processes.clear()
        self.marks.clear()
        self.logs.clear()
        records = self._records()
        # A step told half a second late would stand for progress when nobody moves any more.
        self._logs.refresh(_LIGHT_LOG_S)
        own = tuple(activity for record in records if (activity := self._activity(record)) is not None)
        return (*own, *self._light_elsewhere())

    def lightly(self) -> Snapshot:
        """The last light round as a snapshot: processes, exits, marks and logs, no stacks."""
        exits = self.attempt.exit_statuses() if self.attempt else {}
        return Snapshot(
            job=self._job,
            attempt=self.attempt.number if self.attempt else 0,
            at_mono_s=self._clock.mono_s(),
            at_unix_s=self._clock.unix_s(),
            world_size=self.attempt.world_size() if self.attempt else 0,
            ranks=tuple(
                msgspec.structs.replace(
                    sample_of(place, self.processes.get(place.rank, _NOT_SEEN)),
                    exit_status=exits.get(place.rank),
                    log=self.logs.get(place.rank, _NOT_SEEN),
                    marks=self.marks.get(place.rank, _NOT_SEEN),
                )
                for place in (self.attempt.places if self.attempt else ())
            ),
        )

    def look(self, *, full: bool = False) -> Snapshot:
        """One close round: every rank and descendant with its stack; `full` lists open files as well."""
        records = self._records()
        self._count += 1
        elsewhere = self.others.look(self._group(), f"look-{self._count}", full=full)
        self._logs.refresh(_LOG_S)
        tree = process_tree()
        samples = [
            msgspec.structs.replace(
                with_stacks(observe(record, tree, full=full), _STACKS_S, pipe=record.stacks),
                log=self._logs.latest(record),
                marks=self._marks(record.rank),
                gives_lock=self._locks.get(record.rank, _NOT_ASKED),
            )
            for record in records
        ]
        seen_elsewhere = elsewhere()
        snapshot = Snapshot(
            job=self._job,
            attempt=self.attempt.number if self.attempt else 0,
            at_mono_s=self._clock.mono_s(),
            at_unix_s=self._clock.unix_s(),
            world_size=self.attempt.world_size() if self.attempt else 0,
            ranks=tuple(sorted((*with_connections(samples), *self._of_others(seen_elsewhere)), key=lambda sample: sample.rank)),
            silent_nodes=self._silent_nodes(seen_elsewhere),
        )
        self.kills_elsewhere = seen_elsewhere.kills
        if len(self.looks) > 1:
            self.looks[-2] = _without_recordings(self.looks[-2])
        self.looks.append(snapshot)
        while len(self.looks) > looks_kept(snapshot.world_size):
            self.looks.popleft()
        if full:
            self._full_at_s = snapshot.at_mono_s
            self.add_recordings()
        return self.looks[-1]

    def add_recordings(self) -> None:
        """Complete the last look by the ranks' flight recordings (see within.recordings_of for when)."""
        if self.attempt is None or not self.looks:
            return
        told = {**recordings_of(self.attempt.here()), **self.others.recordings(self._group())}
        found = with_known_lines(told, self._lined)
        none = Missing("this rank has not registered")
        ranks = tuple(msgspec.structs.replace(sample, recording=found.get(sample.rank, none)) for sample in self.looks[-1].ranks)
        self.looks[-1] = msgspec.structs.replace(self.looks[-1], ranks=ranks)

    def add_lines(self, ranks: tuple[int, ...]) -> bool:
        """Put recordings with lines of code in the place of these ranks'. True where one came; asked once an attempt."""
        if self.attempt is None or self._asked_for_lines or not ranks:
            return False
        self._asked_for_lines = True
        told = {
            **lines_of([place for place in self.attempt.here() if place.rank in ranks]),
            **self.others.recordings(self._group(), ranks, lines=True),
        }
        self._lined.update({rank: each for rank, each in told.items() if isinstance(each, FlightRecording)})
        if not self._lined:
            return False
        known = with_known_lines({sample.rank: sample.recording for sample in self.looks[-1].ranks}, self._lined)
        ranks_now = tuple(msgspec.structs.replace(sample, recording=known[sample.rank]) for sample in self.looks[-1].ranks)
        self.looks[-1] = msgspec.structs.replace(self.looks[-1], ranks=ranks_now)
        return True

    def ask_for_locks(self, ranks: tuple[int, ...]) -> bool:
        """Complete the last look by whether these ranks give their interpreter's lock. True where one told; asked once an incident."""
        asked = [place for place in self.attempt.here() if place.rank in ranks and place.rank not in self._locks] if self.attempt else []
        self._locks.update(locks_of(asked))
        told = tuple(msgspec.structs.replace(each, gives_lock=self._locks.get(each.rank, each.gives_lock)) for each in self.looks[-1].ranks)
        self.looks[-1] = msgspec.structs.replace(self.looks[-1], ranks=told)
        for sample in told:
            if any(place.rank == sample.rank for place in asked) and isinstance(sample.process, ProcessSample):
                self._excuse(sample.rank, sample.process)
        return any(isinstance(self._locks.get(place.rank), bool) for place in asked)

    def add_recordings_at_work(self) -> None:
        """The same where a rank may be at work of its own: what its answer costs it is no part of that."""
        here = {place.rank for place in self.attempt.here()} if self.attempt else set[int]()
        ranks = [sample for sample in self.looks[-1].ranks if sample.rank in here] if self.looks else []
        before = {sample.rank: _now(sample.process) for sample in ranks if isinstance(sample.process, ProcessSample)}
        self.add_recordings()
        for rank, seen in before.items():
            if seen is not None:
                self._excuse(rank, seen)

    def _excuse(self, rank: int, before: ProcessSample) -> None:
        """A thread of it has used CPU and touched new memory for our question: no work of the rank's, in none of the looks."""
        if (after := _now(before)) is not None:
            self.looks = deque((with_cost(look, rank, before, after) for look in self.looks), maxlen=_LOOKS_KEPT)

    def look_whole(self) -> Snapshot:
        """The last full look where it is fresh, else a new one."""
        fresh = self._full_at_s is not None and self._clock.mono_s() - self._full_at_s < _FRESH_LOOK_S
        return self.looks[-1] if fresh and self.looks else self.look(full=True)

    def keep_last(self, snapshot: Snapshot) -> None:
        """Put a completed snapshot in the place of the last look."""
        self.looks[-1] = snapshot

    def best_step(self) -> int | None:
        """The highest step any log has named in this attempt."""
        return max(self._steps.values(), default=None)

    def groups(self) -> tuple[ProcessGroup, ...]:
        """The process groups of this attempt, as its ranks' probes saw them made."""
        return tuple({(group.name, group.ranks): group for groups in self._groups.values() for group in groups}.values())

    def calm(self) -> None:
        """Nothing is odd any more: earlier looks explain nothing of what comes."""
        self.looks.clear()
        self._locks.clear()
        self._full_at_s = None

    def own_processes(self) -> dict[int, ProcessSample]:
        """Those of this node: a pid means something on one node alone."""
        elsewhere = self.attempt.elsewhere if self.attempt else frozenset()
        return {rank: sample for rank, sample in self.processes.items() if rank not in elsewhere}

    def _silent_nodes(self, seen: Sight) -> dict[str, float]:
        """A node that has just shown its ranks is none, however long that took it."""
        shown = {sample.node for sample in seen.ranks if isinstance(sample.process, ProcessSample)}
        return {node: since_s for node, since_s in self.others.silent(self._group()).items() if node not in shown}

    def _group(self) -> str | None:
        return self.attempt.group if self.attempt else None

    def _light_elsewhere(self) -> tuple[RankActivity, ...]:
        """Each rank once, and by the node that it was registered on: two may claim the same one."""
        light, theirs = self.others.light(self._group()), self.attempt.elsewhere if self.attempt else frozenset[int]()
        activities = {each.rank: each for each in light.activities if each.rank in theirs}
        self.processes.update({rank: each for rank, each in light.processes.items() if rank in theirs})
        self.marks.update({rank: each for rank, each in light.marks.items() if rank in theirs})
        self.logs.update({rank: each for rank, each in light.logs.items() if rank in theirs})
        self._groups.update({rank: marks.groups for rank, marks in light.marks.items() if rank in theirs})
        self._steps.update({rank: each.step for rank, each in activities.items() if each.step is not None})
        return tuple(activities.values())

    def _of_others(self, seen: Sight) -> list[RankSample]:
        nodes = {place.rank: place.node for place in self.attempt.places if place.rank in self.attempt.elsewhere} if self.attempt else {}
        return [sample for sample in seen.ranks if nodes.get(sample.rank) == sample.node]

    def _records(self) -> tuple[RankRecord, ...]:
        self._places = {place.rank: place for place in self.attempt.places} if self.attempt else {}
        records = self.attempt.records(self._job_dir) if self.attempt else ()
        self._logs.follow(records)
        return records

    def _marks(self, rank: int) -> Marks | Missing:
        place = self._places.get(rank)
        return Missing("this rank has not registered") if place is None else marks_of(place)

    def _activity(self, record: RankRecord) -> RankActivity | None:
        log = self._logs.latest(record)
        if isinstance(log, LogSample):
            self.logs[record.rank] = log
            if log.step is not None:
                self._steps[record.rank] = log.step
        seen = Missing("ended") if record.exit_status is not None else self._glances.at(record.process.pid)
        if isinstance(seen, Missing) and record.exit_status is None and is_hidden(record.process.pid):
            return None
        if isinstance(seen, Missing) or seen.id != record.process:
            return _ended(record, self._steps.get(record.rank))
        marks = self._marks(record.rank)
        self.processes[record.rank] = seen
        if isinstance(marks, Marks):
            self.marks[record.rank] = marks
            self._groups[record.rank] = marks.groups
        return RankActivity(
            rank=record.rank,
            ended=False,
            marked_steps=marks.steps if isinstance(marks, Marks) else None,
            phase=marks.phase if isinstance(marks, Marks) else None,
            group_timeout_s=_shortest_timeout_s(marks),
            joined=self._joining.joined(record.rank, seen.thread_names, marks, steps_go_on=bool(self._steps)),
            traced=seen.tracer_pid != 0,
            stopped=seen.state == "T",
            main_thread_ticks=seen.main_thread_ticks,
            switches=seen.voluntary_switches,
            step=self._steps.get(record.rank),
        )


def looks_kept(ranks: int) -> int:
    """How many looks are kept of a job of so many ranks."""
    return _LOOKS_KEPT if ranks <= _MANY_RANKS else _LOOKS_OF_MANY


def _without_recordings(snapshot: Snapshot) -> Snapshot:
    """Only two rounds of recordings are ever compared, and one of 2000 entries a rank is the largest part of a look."""
    old = Missing("kept of the last two looks only")
    return msgspec.structs.replace(snapshot, ranks=tuple(msgspec.structs.replace(sample, recording=old) for sample in snapshot.ranks))


def _now(seen: ProcessSample) -> ProcessSample | None:
    """The process as it is now, while it is still the same one."""
    now = sample_process(seen.id.pid, with_files=False)
    return now if isinstance(now, ProcessSample) and now.id == seen.id else None


def with_cost(look: Snapshot, rank: int, before: ProcessSample, after: ProcessSample) -> Snapshot:
    """The look as if what a rank's own process used from `before` to `after` had been used before that look."""

    def process_of(sample: RankSample) -> ProcessSample | Missing:
        seen = sample.process
        if isinstance(seen, Missing):
            return seen
        return msgspec.structs.replace(
            seen,
            minor_faults=seen.minor_faults + after.minor_faults - before.minor_faults,
            cpu_ticks=seen.cpu_ticks + after.cpu_ticks - before.cpu_ticks,
            resident_bytes=seen.resident_bytes + max(0, after.resident_bytes - before.resident_bytes),
        )

    ranks = tuple(msgspec.structs.replace(each, process=process_of(each)) if each.rank == rank else each for each in look.ranks)
    return msgspec.structs.replace(look, ranks=ranks)


def _shortest_timeout_s(marks: Marks | Missing) -> float | None:
    """Of all groups with peers in them; None where none is known."""
    groups = () if isinstance(marks, Missing) else marks.groups
    return min((group.timeout_s for group in groups if group.timeout_s is not None and len(group.ranks) > 1), default=None)


def _ended(record: RankRecord, step: int | None) -> RankActivity:
    """A rank that is gone. Without its shim's word it is not known to have ended well, and counts as failed."""
    return RankActivity(
        rank=record.rank,
        ended=True,
        failed=record.exit_status != 0,
        joined=False,
        traced=False,
        stopped=False,
        main_thread_ticks=0,
        switches=0,
        step=step,
    )


def all_joined(activities: Iterable[RankActivity]) -> bool:
    """True when every rank is a member of a process group."""
    return all(activity.joined for activity in activities)
