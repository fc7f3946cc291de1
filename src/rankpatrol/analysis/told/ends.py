"""Processes that died of a signal, left early, or vanished: who was first, where that can be said."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.story_ends import End
from rankpatrol.analysis.told.words import certainty, named, quote, ranks_words, who
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Kind

_CAUSES = {9: "sigkill", 11: "sigsegv", 6: "sigabrt"}
_NAMES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
# These say that a process ended, and are raised by the one that had started it.
_OF_LAUNCHERS = frozenset({"ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException"})
_ADVICE = {
    9: ("Look into the kernel's log and the cgroup's memory.events for a kill on that node: who sent a SIGKILL is not in these lines",),
    11: ("Run that rank with faulthandler and a core dump to see where", "Look whether the same node does it again"),
    6: ("Read what that rank wrote right before: an abort is somebody's decision",),
}


def signalled(story: Story) -> Diagnosis | None:
    """A rank that died of a signal by itself; an abort by c10d's watchdog is none."""
    ends = [end for end in story.ends if end.signal is not None and end.by_itself() and not _by_watchdog(story, end)]
    if not ends:
        return None
    first = _first(ends)
    end = first or ends[0]
    rank = first.rank if first is not None else None
    number = end.signal or 0
    return Diagnosis(
        verdict=story.verdict(),
        cause=_CAUSES.get(number, "unknown"),
        culprit_ranks=named(rank),
        victim_ranks=tuple(sorted(story.ranks - {rank})) if rank is not None and story.others_suffer(rank) else (),
        certainty=certainty(rank is not None, story.told(Kind.COLLATERAL), end.first),
        sentence=f"{who(rank, end.local_rank, end.host, end.pid)} died of {_NAMES.get(number, f'signal {number}')}"
        + ("; the others' errors are effects of that" if story.others_suffer(rank) else ""),
        reasons_for=(quote(end.fact), *(quote(told.first) for told in story.told(Kind.COLLATERAL)[:2])),
        reasons_against=() if rank is not None else ("which rank was first these lines do not say",),
        suggested=_ADVICE.get(number, ("Read what that rank wrote right before",)),
    )


def _by_watchdog(story: Story, end: End) -> bool:
    """SIGABRT after a time-out, or of the C++ runtime with nothing else known: the outcome, not the cause."""
    if end.signal != 6:
        return False
    return (
        bool(story.waits)
        or story.says(Kind.GOING_DOWN)
        or story.says(Kind.WATCHDOG_STUCK)
        or any(failure.exception.rpartition(".")[2] not in _OF_LAUNCHERS for failure in story.exceptions)
        or end.fact.word == "terminate"
    )


def _first(ends: list[End]) -> End | None:
    """The launcher's own first one, else the only one that died so."""
    marked = [end for end in ends if end.first]
    if len(marked) == 1:
        return marked[0]
    whose = {(end.rank, end.local_rank, end.pid) for end in ends}
    if len(whose) == 1 or len({end.rank for end in ends}) == 1:
        return ends[0]
    known = [end for end in ends if end.signal != 9]
    return known[0] if len(known) == 1 else None


def peer_left(story: Story) -> Diagnosis | None:
    """Others lost a peer, a store or a connection, and somebody is known to have left before; never the one who reports it."""
    lost = [told for told in story.told(Kind.COLLATERAL) if told.first.word != "aborted"]
    dead = story.told(Kind.DIED)
    left = [end for end in story.ends if end.code == 0 and end.rank is not None]
    if not lost and not dead and not (left and story.waits):
        return None
    if left and story.waits and not lost:
        return _left_early(story, left)
    if left and lost:
        return _left(story, tuple(sorted({end.rank for end in left if end.rank is not None})), [quote(left[0].fact), quote(lost[0].first)])
    store = [told for told in lost if told.first.word == "store_gone"]
    if store and not story.waits and not story.counted_after(store[0].last):
        return _store_gone([told.first.teller.rank for told in store], [quote(told.first) for told in store[:2]])
    if dead:
        return _dead_process(story)
    return None


def _left(story: Story, ranks: tuple[int, ...], reasons: list[str]) -> Diagnosis:
    one = len(ranks) == 1
    return Diagnosis(
        verdict=story.verdict(),
        cause="peer_exited_first",
        culprit_ranks=ranks if one else None,
        victim_ranks=tuple(sorted(story.ranks - set(ranks))) if one else (),
        certainty=Certainty.SUPPORTED,
        sentence=f"{who(ranks[0] if one else None)} left in good order while others still needed it; their connection "
        f"errors are the effect",
        reasons_for=tuple(reasons),
        suggested=("Let every rank wait for its own sends, and end with a barrier before destroy_process_group",),
    )


def _left_early(story: Story, left: list[End]) -> Diagnosis | None:
    """Ranks that ended with code 0, and others that waited in a collective until its time-out; a reporter cannot have left."""
    waiting = {wait.rank for wait in story.waits}
    ranks = sorted({end.rank for end in left if end.rank is not None} - waiting)
    if not ranks:
        return None
    one = len(ranks) == 1
    accounted = story.world_size is not None and waiting | set(ranks) >= set(range(story.world_size))
    return Diagnosis(
        verdict=story.verdict("hang"),
        cause="left_early",
        culprit_ranks=tuple(ranks) if one else None,
        victim_ranks=tuple(sorted(rank for rank in waiting if rank is not None)),
        certainty=Certainty.SUPPORTED if accounted else Certainty.SUSPECTED,
        sentence=f"{ranks_words(ranks)} ended with code 0, and others waited for {'it' if one else 'them'} in a collective",
        reasons_for=(quote(left[0].fact), *(quote(wait.fact) for wait in story.waits[:1])),
        reasons_against=("an end in good order that the others had not come to yet would look alike",),
        suggested=("Give all ranks the same number of steps, or let every rank wait in a barrier before it ends",),
    )


def _store_gone(tellers: list[int | None], reasons: list[str]) -> Diagnosis:
    """The store lives in rank 0's process, unless the launcher's agent holds it: then rank 0 misses it as well."""
    known = {rank for rank in tellers if rank is not None}
    # Only where each other rank misses it and rank 0 alone does not: few reporters say nothing of the rest.
    rank = 0 if len(known) > 1 and known == set(range(1, max(known) + 1)) and len(known) == len(set(tellers)) else None
    return Diagnosis(
        verdict="crash",
        cause="peer_exited_first",
        culprit_ranks=named(rank),
        victim_ranks=tuple(sorted(known)),
        sentence=f"the store is gone: {'rank 0, which holds it,' if rank == 0 else 'the process that holds it'} ended before the others",
        reasons_for=tuple(reasons),
        reasons_against=(
            "why it ended stands in its own log (of its first attempt), not here",
            *(() if rank == 0 else ("rank 0 misses it as well, or is not told apart: the launcher's agent may hold it",)),
        ),
        suggested=(
            "Read the end of rank 0's log, and that of the launcher on its node",
            "The warnings of the others need no search of their own",
        ),
    )


def _dead_process(story: Story) -> Diagnosis | None:
    told = story.told(Kind.DIED)[0]
    pid = told.first.number("pid")
    number = told.first.number("rank")
    host = told.first.values.get("host")
    rank = int(number) if number is not None else story.rank_of_pid(int(pid), host) if pid is not None else None
    word = told.first.word
    if word == "ray_oom":
        cause = "host_oom_kill"
    elif word in {"lost_agent", "ray_node"}:
        cause = "node_missing"
    elif word in {"launcher_died", "observed"}:
        cause = "launcher_lost_worker"
    else:
        cause = "peer_exited_first"
    return Diagnosis(
        verdict="zombie_job"
        if word == "observed" or (story.told(Kind.OBSERVED, "squeue_running") and cause != "peer_exited_first")
        else "crash",
        cause=cause,
        culprit_ranks=named(rank),
        certainty=certainty(story.told(Kind.COLLATERAL), rank is not None),
        sentence=f"{who(rank, host=host, pid=int(pid) if pid is not None else None)} was gone "
        f"first; the errors of the others are the effect",
        reasons_for=(quote(told.first), *(quote(other.first) for other in story.told(Kind.COLLATERAL)[:1])),
        reasons_against=("the reasons that the launcher lists are possibilities, none of them seen",),
        suggested=("Read the log of that process, and its node's kernel log",),
    )


def watchdog_was_wrong(story: Story) -> Diagnosis | None:
    """c10d's watchdog said that it does not move, and steps came after it."""
    stuck = story.told(Kind.WATCHDOG_STUCK)
    if not stuck or story.went_down or story.waits or story.pace is None or not story.counted_after(stuck[-1].last):
        return None
    return Diagnosis(
        verdict="healthy",
        cause="watchdog_false_alarm",
        sentence=f"c10d's watchdog complained, and the steps went on after it (to {story.pace.last.step})",
        reasons_for=(quote(stuck[-1].last),),
        reasons_against=("the process may still be ended by it",),
        suggested=("Raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC if it comes again",),
    )


def left_over(story: Story) -> Diagnosis | None:
    """Something ended, and no line says of what: the outcome without a culprit."""
    lost = story.told(Kind.COLLATERAL)
    bad = [end for end in story.ends if end.code not in {0, None} or end.signal is not None]
    if not lost and not bad and not story.echoes and not story.says(Kind.GOING_DOWN) and not story.says(Kind.WATCHDOG_STUCK):
        return None
    facts = [*(end.fact for end in bad[:1]), *(told.first for told in lost[:2]), *(echo.fact for echo in story.echoes[:1])]
    facts = facts or [told.first for told in story.told(Kind.WATCHDOG_STUCK)[:2]]
    rank = _only_failed(bad)
    stuck = story.says(Kind.WATCHDOG_STUCK) and not story.went_down
    return Diagnosis(
        verdict="hang" if stuck else story.verdict(),
        cause="peer_exited_first" if lost and not bad and any(told.first.word == "remote_gone" for told in lost) else "unknown",
        culprit_ranks=named(rank),
        sentence="c10d's watchdog itself does not move; what blocks it is not said"
        if stuck
        else f"{who(rank)} ended with an error, and its reason is not in these lines"
        if bad
        else "what was read only echoes another rank's end",
        reasons_for=tuple(quote(fact) for fact in facts[:3]),
        reasons_against=("the first cause stands in a log that was not given",),
        suggested=("Add the logs of the other ranks and the launcher's table of failures",),
    )


def _only_failed(bad: list[End]) -> int | None:
    own = [end for end in bad if end.by_itself() and end.signal != 6]
    firsts = [end for end in own if end.first or end.fact.word == "first_child"]
    ranks = {end.rank for end in firsts or own}
    return ranks.pop() if len(ranks) == 1 and firsts else None
