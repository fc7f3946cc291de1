"""What the scheduler ended is no crash: its word goes before any exit code, unless a rank had failed well before."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import quote, ranks_words
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Fact, Kind, seconds_between
from rankpatrol.formats.log_ledger import Told

_PHRASES = {
    "time_limit": "the scheduler ended the job at its time limit",
    "preempted": "the job was preempted",
    "requeued": "the scheduler put the job back into the queue",
    "cancelled": "the job was cancelled",
    "deleted": "the job's pod was deleted or stopped from outside",
    "walltime_signal": "the job was told to end by a signal, and began to end in order",
    "node_fail": "the scheduler says that a node failed",
    "node_lost": "a node does not answer any more",
    "oom": "the scheduler's memory limit killed a process",
}
_ADVICE = {
    "time_limit": ("Give the job more time, or save a checkpoint in time (a signal before the limit: `#SBATCH --signal=B:USR1@300`)",),
    "preempted": ("Nothing is broken: requeue it, and resume from the newest good checkpoint (`rankpatrol checkpoints latest DIR`)",),
    "node_fail": ("Drain that node, and requeue the job without it",),
    "node_lost": ("Look whether the node answers at all; drain it, and requeue the job without it",),
    "oom": ("Give the job more host memory, or fewer loader processes",),
}
# A failure this long before the scheduler's word stands for itself; what comes closer is the end that the scheduler made.
_OF_THE_SAME_END_S = 120.0
# Of several words the one that says most: a step is cancelled in every other case, too.
_ORDER = (
    "node_fail", "oom", "time_limit", "preempted", "node_lost", "requeued", "walltime_signal", "cancelled", "deleted", "step_cancelled",
)  # fmt: skip
_ORDERLY = frozenset({"time_limit", "preempted", "requeued", "cancelled", "deleted", "walltime_signal"})
# Said of a step after any rank failed, too.
_WEAK = frozenset({"step_cancelled", "deleted", "cancelled", "walltime_signal"})


def ended_by_scheduler(story: Story) -> Diagnosis | None:
    """Time limit, pre-emption, cancellation, a lost node, or the scheduler's own memory limit."""
    words = [told for told in story.told(Kind.SCHEDULER) if not _of_an_earlier_attempt(story, told)]
    words = [told for told in words if not _failed_before(story, told) and not (told.first.word == "oom" and story.says(Kind.LOADER_DIED))]
    if not words:
        return _told_to_end(story)
    told = min(words, key=lambda each: _ORDER.index(each.first.word))
    word = told.first.word
    if word == "step_cancelled":
        return _shutdown(story, told, "cancelled") if not story.waits and not story.failures else None
    if word == "oom":
        return _out_of_memory(story, told)
    if word in {"node_fail", "node_lost"}:
        return _node(story, told)
    return _shutdown(story, told, word)


def _told_to_end(story: Story) -> Diagnosis | None:
    """The launcher itself was signalled, and nothing had failed before: somebody ended the job."""
    told = story.told(Kind.SIGNALLED, "launcher_signalled")
    if not told or story.failures or any(story.comes_before(wait.fact, told[0].first) for wait in story.waits) or story.says(Kind.SYMPTOM):
        return None
    return Diagnosis(
        verdict="shutdown",
        cause="preempted_or_cancelled",
        certainty=Certainty.SUPPORTED,
        sentence="the launcher was told to end by a signal; the exit codes and errors that follow are part of that end",
        reasons_for=tuple(quote(each.first) for each in told[:2]),
        reasons_against=("who sent the signal is not said: a scheduler, a person, or a closed terminal",),
        suggested=("Ask the scheduler for its reason (`sacct -j JOB`, `kubectl describe pod`)",),
    )


def _of_an_earlier_attempt(story: Story, told: Told) -> bool:
    """Whether ranks went on to work after it: a new attempt, of which this word says nothing."""
    last = story.last_activity
    if last is None or story.comes_before(last, told.last) or (last.kind is Kind.RAISED and story.pace is None):
        return False
    later = [other.last for other in story.told(Kind.PROGRESS) + story.told(Kind.PHASE) if story.comes_before(told.last, other.last)]
    gaps = [seconds_between(told.last.at, fact.at) for fact in later]
    if any(gap is not None for gap in gaps):
        return any(gap is not None and gap > _OF_THE_SAME_END_S for gap in gaps)
    return any(fact.word in {"loading", "loaded", "starting"} for fact in later)  # without times, a new start alone tells


def _failed_before(story: Story, told: Told) -> bool:
    """Whether a rank had failed by itself before, and not just as part of this end."""
    own: list[Fact] = [failure.fact for failure in story.failures]
    own += [wait.fact for wait in story.waits]
    own += [end.fact for end in story.ends if end.by_itself() and end.code != 0 and end.signal != 9]
    own += [other.first for other in story.told(Kind.SYMPTOM, "xid", "gpu_lost", "gpu_ecc", "illegal_access")]
    # A word that also follows a failure yields to one whose place in time is not known; a scheduler's own reason does not.
    if told.first.word in _WEAK:
        return any(story.comes_before(fact, told.first) is not False for fact in own)
    earlier = [fact for fact in own if story.comes_before(fact, told.first)]
    gaps = [seconds_between(fact.at, told.first.at) for fact in earlier]
    return any(gap is None or gap > _OF_THE_SAME_END_S for gap in gaps)


def _shutdown(story: Story, told: Told, word: str) -> Diagnosis:
    exits = [end for end in story.ends if end.code not in {0, None}]
    return Diagnosis(
        verdict="shutdown",
        cause="preempted_or_cancelled",
        certainty=Certainty.PROVED if word in _ORDERLY - _WEAK else Certainty.SUPPORTED,
        sentence=f"{_PHRASES[word]}; the exit codes and errors that follow are part of that end",
        reasons_for=(quote(told.first), *(f"{len(exits)} process(es) ended after it" for _ in exits[:1])),
        suggested=_ADVICE.get(word, ("Nothing is broken: start it again from the newest good checkpoint when you want it to go on",)),
        not_to_be_ended="the scheduler has ended it",
    )


def _node(story: Story, told: Told) -> Diagnosis:
    running = story.told(Kind.OBSERVED, "squeue_running")
    silent = tuple(sorted(story.ranks - story.seen_ranks)) if story.world_size else ()
    return Diagnosis(
        verdict="zombie_job" if running else "crash",
        cause="node_missing",
        certainty=Certainty.PROVED if told.first.word == "node_fail" else Certainty.SUPPORTED,
        sentence=f"{_PHRASES[told.first.word]}, and with it the ranks that ran there; the others can only wait or fail",
        reasons_for=(quote(told.first), *(quote(each.first) for each in running[:1])),
        reasons_against=(f"{ranks_words(silent)} wrote nothing at all" if silent else "which ranks ran there is not said",),
        suggested=_ADVICE[told.first.word],
    )


def _out_of_memory(story: Story, told: Told) -> Diagnosis:
    told_ends = {end.rank for end in story.ends if end.signal == 9 and end.rank is not None}
    pods = _in_killed_pods(story)
    killed = sorted(told_ends | pods)
    return Diagnosis(
        verdict="crash",
        cause="host_oom_kill",
        culprit_ranks=(killed[0],) if len(killed) == 1 else None,
        # A list of pods may be a selection: another one may have been killed as well.
        certainty=Certainty.SUSPECTED if len(killed) == 1 and not told_ends else Certainty.PROVED,
        sentence=f"{_PHRASES['oom']}{f' of rank {killed[0]}' if len(killed) == 1 else ''}: the job's host memory ran out",
        reasons_for=(quote(told.first), *(quote(end.fact) for end in story.ends[:2])),
        reasons_against=("the kernel chooses by size: the rank that was killed need not be the one that grew",),
        suggested=_ADVICE["oom"],
    )


def _in_killed_pods(story: Story) -> set[int]:
    """The ranks of the pods that were killed for memory, where each pod's rank is told."""
    pods = {told.first.values.get("component") or told.first.teller.component for told in story.told(Kind.SCHEDULER, "oom")}
    ranks = {story.places.of_component(pod) for pod in pods if pod is not None}
    return {rank for rank in ranks if rank is not None} if None not in ranks else set()
