"""What flight recorder dumps of one moment say: who is missing, who runs something else, who waits in a circle.

There is one dump a rank, and dumps are not taken at one moment. What two ranks entered at the same sequence of one group does not
change any more: where they differ, that is proved. That a rank is behind may be a difference in time: how long the others had waited
when their dumps were written speaks for it, and their own time-out proves it.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from rankpatrol.analysis.collectives import desync_in
from rankpatrol.analysis.desyncs import CONDITIONAL, UNCHANGED, Desync, explain_desync, say_pending, say_verb
from rankpatrol.analysis.recordings import Look, is_counterpart, peer_of
from rankpatrol.analysis.rings import look_at_rings
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.rings import Recordings
from rankpatrol.core.snapshot import Collective

_NO_ERRORS: Mapping[int, str] = {}
# A running job's ranks enter a collective at different moments: a dump that was written sooner after it says nothing.
_YOUNG_S = 5.0
_DEFAULT = "default_pg"
_DISAGREE = frozenset({"collective_mismatch_op", "collective_mismatch_shape", CONDITIONAL, "rank_missing_collective"})
_ADVICE = {
    "rank_missing_collective": "look at what {ranks} did instead: its log, its stack, its node",
    "collective_mismatch_op": "compare the code that {ranks} ran at this place with the others'",
    "collective_mismatch_shape": "compare the size of the batch or the parameters of {ranks} with the others'",
    CONDITIONAL: "take the collective out of the condition, or let every rank of the group run it",
    "opposite_order": "let all ranks use these groups in one order",
    "p2p_mismatch": "let one of them send while the other receives, or use batch_isend_irecv",
    "collective_started_everywhere": "check the links and GPUs of these ranks: no rank is to blame for not coming",
    "rank_exception_peers_wait": "mend the error of {ranks}; the others only wait",
}


def diagnose_recordings(
    recordings: Recordings,
    errors: Mapping[int, str] = _NO_ERRORS,
    timed_out: frozenset[int] = frozenset(),
    world_size: int | None = None,
) -> Diagnosis | None:
    """What these recordings say, or None where there are none.

    `errors` are exceptions that ranks' own logs tell; `timed_out` are ranks whose own watchdog told that their collective timed out;
    `world_size` is how many ranks the job has, where that is known from elsewhere.
    """
    if not recordings.rings:
        return None
    kept, strange = _one_job(recordings)
    if kept is None:
        return _undetermined("these dumps are of jobs with different ranks: " + strange, ())
    told = _Told(kept, errors, timed_out, world_size)
    found = told.diagnosis()
    return msgspec.structs.replace(found, reasons_against=(*found.reasons_against, strange)) if strange else found


def _one_job(recordings: Recordings) -> tuple[Recordings | None, str]:
    """The recordings of the ranks that agree on who is in the job, and what was left out; None where no more than others agree."""
    worlds = {rank: tuple(ring.members[_DEFAULT]) for rank, ring in recordings.rings.items() if _DEFAULT in ring.members}
    counts = Counter(worlds.values()).most_common(2)
    if len(counts) < 2:
        return recordings, ""
    said = ", ".join(f"{count} {'dump is' if count == 1 else 'dumps are'} of {len(world)} ranks" for world, count in counts)
    if counts[0][1] == counts[1][1]:
        return None, said
    kept = {rank: ring for rank, ring in recordings.rings.items() if worlds.get(rank) == counts[0][0]}
    other = tuple(rank for rank in recordings.rings if rank not in kept)
    unread = {**recordings.unread, **dict.fromkeys(other, "it is of a job with other ranks")}
    return msgspec.structs.replace(recordings, rings=kept, unread=unread), f"{said}: those of {say_ranks(other)} were left out"


class _Ages(Record, frozen=True):
    """Ranks by how long they had waited when their dumps were written: for their time-out, or for no time to speak of."""

    patient: frozenset[int]
    young: frozenset[int]
    longest_s: float | None


class _Told:
    """One job's recordings, put in order."""

    def __init__(self, recordings: Recordings, errors: Mapping[int, str], timed_out: frozenset[int], world_size: int | None) -> None:
        # A dump without any entry tells as little as none: whether its rank ran nothing, or its recorder was off, is not in it.
        full = {rank: ring for rank, ring in recordings.rings.items() if len(ring.calls)}
        recordings = msgspec.structs.replace(recordings, rings=full or recordings.rings)
        self.recordings = recordings
        self.errors = errors
        self.timed_out = timed_out
        self.told_world = world_size is not None or any(_DEFAULT in ring.members for ring in recordings.rings.values())
        self.world_size = world_size or _world_size(recordings)
        self.look = look_at_rings(recordings, self.world_size)
        self.ages = _ages(recordings, self.look)
        self.patient = self.ages.patient | timed_out
        self.absent = tuple(rank for rank in range(self.world_size) if rank not in recordings.rings and rank not in recordings.unread)

    def diagnosis(self) -> Diagnosis:
        still = frozenset(self.recordings.rings) - (self.ages.young - self.timed_out)
        # A receive may be posted long before anybody waits for it: without its time-out it is no sign of waiting.
        blocked = frozenset(
            rank
            for rank in still
            if any(not each.entry.is_p2p for each in self.look.by_rank[rank].pending)
            or (self.look.by_rank[rank].pending and rank in self.patient)
        )
        found = desync_in(self.look, still, blocked)
        told = self._explained(found) if found is not None else self._unpaired()
        return self._raised() or told or self._nothing(blocked)

    def _explained(self, found: Desync) -> Diagnosis:
        ranks = found.ranks if found.ranks is None or not set(found.ranks) & set(self.recordings.unread) else None
        told = explain_desync(msgspec.structs.replace(found, ranks=ranks, by_stacks=False))
        certainty = self._certainty(found)
        return msgspec.structs.replace(
            told,
            certainty=certainty,
            reasons_for=(*(reason for reason in told.reasons_for if reason != UNCHANGED), *self._age()),
            reasons_against=(*self._doubts(found, certainty), *(each for each in told.reasons_against if "two rounds" not in each)),
            suggested=(_ADVICE[found.kind].format(ranks=say_ranks(ranks) if ranks else "these ranks"),),
        )

    def _certainty(self, found: Desync) -> Certainty:
        """Each line here asks for more evidence than the one below it, so that what is missing never makes an answer surer."""
        if found.kind in _DISAGREE and found.proved and _same_place(found):
            return Certainty.PROVED if found.by_lines else Certainty.SUPPORTED
        if found.proved:
            # Who else is in it is not known while a dump is missing.
            seen_all = not self.absent and not self.recordings.unread
            return Certainty.PROVED if seen_all and all(self.timed_out & set(each.ranks) for each in found.sides) else Certainty.SUPPORTED
        return Certainty.SUPPORTED if self._agreed(found) else Certainty.SUSPECTED

    def _agreed(self, found: Desync) -> bool:
        """True where every member of the group is seen to be in the collective for its whole time-out, but for those who are missing."""
        entry = found.sides[0]
        there = frozenset(entry.ranks)
        pending = next((each for each in self.look.by_rank[min(there)].pending if each.group.name == found.group), None)
        missing = frozenset(found.ranks or ())
        return (
            pending is not None
            and there | missing == frozenset(pending.group.members)
            and len(there) > 1
            and there <= self.patient
            and missing <= self.recordings.rings.keys()
            and (bool(missing) or (self.told_world and len(self.recordings.rings) == self.world_size))
        )

    def _raised(self) -> Diagnosis | None:
        """A rank whose log tells its exception, that has not come to a collective in which others wait."""
        for rank, error in sorted(self.errors.items()):
            waiting = self._waiting_for(rank)
            if not waiting or any(other != rank and other not in self.recordings.rings for other in self.errors):
                continue
            entry = self.look.by_rank[waiting[0]].pending[0]
            seen = "has not entered it" if rank in self.recordings.rings else "has written no dump"
            return Diagnosis(
                verdict="hang",
                cause="rank_exception_peers_wait",
                culprit_ranks=(rank,),
                victim_ranks=waiting,
                certainty=Certainty.SUPPORTED,
                sentence=f"rank {rank} raised {error} and {seen}; {say_verb(waiting, 'waits', 'wait')} in {say_pending(entry)}",
                reasons_for=(
                    f"{say_verb(waiting, 'waits', 'wait')} in {say_pending(entry)}",
                    f"rank {rank} {seen}",
                    f"its log tells: {error}",
                    *self._age(),
                ),
                reasons_against=self._missing_dumps(),
                suggested=(_ADVICE["rank_exception_peers_wait"].format(ranks=f"rank {rank}"),),
            )
        return None

    def _waiting_for(self, rank: int) -> tuple[int, ...]:
        """Ranks whose oldest open collective has this rank as a member that, as far as is known, is not in it."""
        found = []
        for other, tracks in self.look.by_rank.items():
            first = tracks.pending[0] if tracks.pending else None
            if other == rank or first is None or first.entry.is_p2p or rank not in first.group.members:
                continue
            at = self.look.position(rank, first.group)
            if (at is None and rank not in self.recordings.rings) or (at is not None and at < first.entry.sequence):
                found.append(other)
        return tuple(sorted(found))

    def _unpaired(self) -> Diagnosis | None:
        """Ranks that have sent or received until their time-out, while the rank at the other end has no such operation open."""
        alone = [
            (rank, each, peer)
            for rank in sorted(self.patient & self.look.by_rank.keys())
            for each in self.look.by_rank[rank].pending[:1]
            if each.entry.is_p2p and (peer := peer_of(each)) is not None and peer in self.look.by_rank
            if not any(is_counterpart(each, its) for its in self.look.by_rank[peer].pending)
        ]
        if not alone:
            return None
        said = tuple(f"rank {rank} is in {say_pending(each)}, and rank {peer} has nothing open that meets it" for rank, each, peer in alone)
        return Diagnosis(
            verdict="hang",
            cause="p2p_mismatch",
            victim_ranks=tuple(rank for rank, _, _ in alone),
            certainty=Certainty.SUSPECTED,
            sentence=f"{'; '.join(said[:4])}, so nobody can be named",
            reasons_for=(*said, *self._age()),
            reasons_against=(*self._missing_dumps(), "a rank that computes before it sends looks the same"),
            suggested=("compare the order of sends and receives of both ends, and look at what the rank that did not come does instead",),
        )

    def _nothing(self, blocked: frozenset[int]) -> Diagnosis:
        open_ranks = tuple(rank for rank, tracks in self.look.by_rank.items() if tracks.pending)
        if self.absent or self.recordings.unread:
            return _undetermined("the dumps that could be read name nobody", (*self._missing_dumps(), *self._age()))
        if not open_ranks:
            return Diagnosis(
                verdict="healthy",
                cause="none",
                certainty=Certainty.SUSPECTED,
                sentence=f"no rank of {self.world_size} waits: every recorded operation is over",
                reasons_against=("a rank that stands outside of any collective is not in these dumps",),
            )
        young = " (a job that runs looks so)" if self.ages.young and not blocked else ""
        return _undetermined(
            f"{say_verb(open_ranks, 'is', 'are')} in operations that are not over, and nobody can be named{young}", self._age()
        )

    def _doubts(self, found: Desync, certainty: Certainty) -> tuple[str, ...]:
        doubts = list(self._missing_dumps())
        if certainty is not Certainty.PROVED and not (frozenset(found.waiting) <= self.timed_out):
            doubts.append("there is one dump a rank: whether anything moved afterwards is not in them")
        if not frozenset(found.waiting) & self.patient and self.ages.longest_s is None:
            doubts.append("how long they had waited when their dumps were written is not known")
        if not self.told_world:
            doubts.append(f"that the job has no more than {self.world_size} ranks is not in these dumps")
        return tuple(doubts)

    def _missing_dumps(self) -> tuple[str, ...]:
        told = []
        if self.absent:
            told.append(f"{say_verb(self.absent, 'has', 'have')} written no dump: often that is the rank to look at first")
        told += [f"the dump of rank {rank} could not be read: {reason}" for rank, reason in sorted(self.recordings.unread.items())[:4]]
        return tuple(told)

    def _age(self) -> tuple[str, ...]:
        told = [f"its watchdog timed out on {say_ranks(tuple(self.timed_out))}"] if self.timed_out else []
        if self.ages.longest_s is not None:
            told.append(f"the oldest open operation was {self.ages.longest_s:.0f} s old when its rank's file was last written")
        return tuple(told)


def _same_place(found: Desync) -> bool:
    """True where all sides stand at one sequence of one group: what they entered there contradicts whatever the moment."""
    return len({(each.group, each.sequence) for each in found.sides}) == 1


def _world_size(recordings: Recordings) -> int:
    told = [max(ring.members[_DEFAULT]) for ring in recordings.rings.values() if ring.members.get(_DEFAULT)]
    return 1 + max(told, default=max((*recordings.rings, *recordings.unread)))


def _ages(recordings: Recordings, look: Look) -> _Ages:
    patient, young, longest_s = set(), set(), None
    for rank, ring in recordings.rings.items():
        since_s, written_s = ring.pending_since_unix_s, recordings.written_unix_s.get(rank)
        if since_s is None or written_s is None:
            continue
        age_s = written_s - since_s
        longest_s = max(age_s, longest_s or age_s)
        if age_s < _YOUNG_S:
            young.add(rank)
        elif age_s >= _timeout_s([each.entry for each in look.by_rank[rank].pending]):
            patient.add(rank)
    return _Ages(frozenset(patient), frozenset(young), longest_s)


def _timeout_s(pending: list[Collective]) -> float:
    return min((each.timeout_s for each in pending if each.timeout_s), default=float("inf"))


def _undetermined(why: str, reasons: tuple[str, ...]) -> Diagnosis:
    return Diagnosis(verdict="undetermined", cause="unknown", sentence=why, reasons_against=reasons)
