"""Jobs that say nothing: measured by their own pace, their phase and what the observer saw; never by a fixed number of minutes alone."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.story_pace import stated_seconds
from rankpatrol.analysis.told.elsewhere import BUSINESS, fraction, last_phase
from rankpatrol.analysis.told.words import quote
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.testimony import Kind, seconds_between
from rankpatrol.formats.log_ledger import Told

_WITHIN = 1.5  # a line may come half as late again as usual
_SLACK_S = 30.0  # writers flush, observers look at their clocks
_AS_BEFORE = 1.4  # a pause at the same place may take somewhat longer than the last time
_STALL_S = 300.0
# How long a phase may be silent before it is doubted, where it shows no counter of its own.
_BUDGETS_S = {"preprocessing": 7200.0, "evaluating": 3600.0, "saving": 1800.0, "loading": 1800.0, "downloading": 900.0, "compiling": 2700.0}
_STOOD_STILL_S = 600.0
# A job that announced one of these and says nothing for longer than this is at it, whatever the pace of its steps.
_LONG_PAUSES = frozenset({"saving", "evaluating"})
_PAUSES_S = 120.0
_BUSY_RATIO = 50.0
_SPINNING_POWER_RATIO = 0.5
_WORKING_W = 300.0  # a waiting kernel draws a third of that on the GPUs that train


def standing_still(story: Story) -> Diagnosis | None:
    """Nothing came for a while: as usual, a legitimate phase, or a hang of unknown cause."""
    silence = story.silence_s
    pulse = _frozen_pulse(story)
    if silence is None and pulse is None:
        return None
    usual = _as_usual(story, silence)
    phase = last_phase(story)
    in_it = phase is not None and phase.last.word in _LONG_PAUSES and silence is not None and silence > _PAUSES_S
    if pulse is None and usual is not None and not (in_it and usual.verdict == "healthy"):
        return usual
    if pulse is None and phase is not None:
        return _in_phase(story, phase, silence)
    if pulse is None and (buffered := _buffered(story)) is not None:
        return buffered
    if pulse is None and (first := _first_step(story, silence)) is not None:
        return first
    if silence is not None and silence < _STALL_S and pulse is None:
        return None
    return _stalled(story, silence, pulse)


def as_usual(story: Story) -> Diagnosis | None:
    """No failure, and the counter moves, or the run says that it is done."""
    finished = story.told(Kind.FINISHED)
    if finished and not story.counted_after(finished[-1].last) and not story.went_down:
        return _healthy("the training says that it is done", (quote(finished[-1].last),), ())
    phase = last_phase(story)
    if phase is not None and _moves(phase):
        return _in_phase(story, phase, None)
    return None


def _as_usual(story: Story, silence: float | None) -> Diagnosis | None:
    pace = story.pace
    if pace is None or silence is None:
        return None
    if pace.usual_gap_s is not None and silence <= max(_WITHIN * pace.usual_gap_s, pace.usual_gap_s + _SLACK_S):
        return _healthy(
            f"a line comes every {say_duration(pace.usual_gap_s)}, and the last one is {say_duration(silence)} old: as usual",
            (f"the last counter seen is step {pace.last.step}",),
            (),
        )
    if pace.pauses_s and silence <= _AS_BEFORE * max(pace.pauses_s):
        before = ", ".join(say_duration(gap) for gap in pace.pauses_s[-3:])
        return Diagnosis(
            verdict="benign_wait",
            cause="long_eval",
            certainty=Certainty.SUPPORTED,
            sentence=f"nothing came for {say_duration(silence)} after step {pace.last.step}, a step of every {pace.every} "
            f"at which it paused as long before: an evaluation or a save",
            reasons_for=(f"earlier pauses at such steps: {before}",),
            reasons_against=("what it does in the pause is not said",),
            suggested=(f"Wait until {say_duration(_AS_BEFORE * max(pace.pauses_s))} have passed",),
        )
    return None


def _healthy(sentence: str, reasons: tuple[str, ...], against: tuple[str, ...]) -> Diagnosis:
    return Diagnosis(
        verdict="healthy", cause="none", certainty=Certainty.SUPPORTED, sentence=sentence, reasons_for=reasons, reasons_against=against
    )


def _moves(phase: Told) -> bool:
    return fraction(phase.first) != fraction(phase.last)


def _in_phase(story: Story, phase: Told, silence: float | None) -> Diagnosis | None:
    word = phase.last.word
    business = BUSINESS[word]
    moves = _moves(phase)
    counted = bool(fraction(phase.last))
    earlier = max((seconds for told in story.told(Kind.OBSERVED, "earlier") if (seconds := stated_seconds(told.last))), default=0.0)
    budget = max(_BUDGETS_S[word], _AS_BEFORE * earlier)
    signs = story.says(Kind.OBSERVED, "file_grows") or story.says(Kind.OBSERVED, "cpu_works")
    if silence is not None and not signs and (silence > budget or (counted and not moves and phase.count > 1 and silence > _STOOD_STILL_S)):
        return _stood_still(story, phase, silence)
    stood = _shown_alike_s(story, phase)
    if stood is not None and stood > _STOOD_STILL_S and counted and not signs:
        return _stood_still(story, phase, stood)
    if silence is not None and word == "downloading" and not moves and not signs and silence > _STOOD_STILL_S:
        return _stood_still(story, phase, silence)
    rank = phase.last.teller.rank
    waits_for_main = story.says(Kind.PHASE, "waiting") or story.not_waiting is not None
    if rank is None and waits_for_main:
        rank = story.not_waiting if story.not_waiting is not None else _main_rank(story)
    others = {told.last.teller.rank for told in story.told(Kind.PHASE, word)} - {rank, None}
    alone = rank is not None and not others
    awaited = (rank,) if rank is not None and alone and (len(story.seen_ranks) > 1 or waits_for_main) else None
    warn = _will_time_out(story, phase)
    return Diagnosis(
        verdict="benign_wait",
        cause=business.alone if alone or word != "evaluating" else business.together,
        awaited_ranks=awaited,
        certainty=Certainty.SUPPORTED if moves or signs else Certainty.SUSPECTED,
        sentence=f"{f'rank {rank}' if rank is not None else 'the job'} is still at it: {phase.last.text[:100].strip()}",
        reasons_for=(quote(phase.last), *((f"its counter moves: {fraction(phase.first)}, then {fraction(phase.last)}",) if moves else ())),
        reasons_against=warn,
        suggested=("Wait; nothing has to be done", *(business.suggested[:1] if warn else ())),
    )


def _main_rank(story: Story) -> int | None:
    """Rank 0 is the main process, unless it waits for one itself."""
    return None if 0 in {told.first.teller.rank for told in story.told(Kind.PHASE, "waiting")} else 0


def _will_time_out(story: Story, phase: Told) -> tuple[str, ...]:
    eta = phase.last.number("eta_s")
    limit = next((wait.timeout_s for wait in story.waits if wait.timeout_s), 600.0)
    if eta is None or eta < limit:
        return ()
    return (
        (
            f"it says that it needs {say_duration(eta)} more, and a collective time-out is 10 min unless set "
            f"otherwise: the others will give up"
        ),
    )


def _shown_alike_s(story: Story, phase: Told) -> float | None:
    """For how long a counter has been shown again and again at one value."""
    if phase.since is phase.last:
        return None
    return seconds_between(phase.since.at, story.now or phase.last.at)


_CAUSES_OF_STANDSTILL = {"downloading": "download_stall"}


def _stood_still(story: Story, phase: Told, silence: float) -> Diagnosis:
    stuck = story.told(Kind.SYMPTOM, "fs_stall", "hung_task", "io_error") + story.told(Kind.OBSERVED, "kernel_state")
    word = phase.last.word
    rank = phase.last.teller.rank if phase.last.teller.rank is not None else story.not_waiting
    at = f" at {fraction(phase.last)}" if fraction(phase.last) else ""
    return Diagnosis(
        verdict="hang",
        cause="filesystem_stall" if stuck else _CAUSES_OF_STANDSTILL.get(word, "unknown"),
        culprit_ranks=(rank,) if rank is not None and (stuck or story.says(Kind.PHASE, "waiting") or story.not_waiting == rank) else None,
        certainty=Certainty.SUPPORTED if stuck else Certainty.SUSPECTED,
        sentence=f"{f'rank {rank}' if rank is not None else 'a rank'} stands still while {word}{at} for {say_duration(silence)}",
        reasons_for=(quote(phase.last), *(quote(told.first) for told in stuck[:2])),
        suggested=BUSINESS[word].suggested[:1],
    )


def _buffered(story: Story) -> Diagnosis | None:
    """The GPUs compute at full power while nothing is written: the writer's buffer, not the job."""
    readings = [told.last for told in story.told(Kind.GPU)]
    power = [(fact.number("power_w"), fact.number("before_w")) for fact in readings]
    spins = any(now is not None and before is not None and now < _SPINNING_POWER_RATIO * before for now, before in power)
    busy = [fact for fact in readings if (fact.number("util") or 0) >= _BUSY_RATIO or fact.values.get("state") in {"busy", "active"}]
    strong = [fact for fact in busy if (fact.number("power_w") or 0) >= _WORKING_W]
    moves = [told for told in story.told(Kind.OBSERVED, "goes_on") if told.last.values["before"] != told.last.values["after"]]
    signs = moves + story.told(Kind.OBSERVED, "buffered") + [told for told in story.told(Kind.OBSERVED, "log_size") if _whole_blocks(told)]
    works = bool(busy) and len(busy) == len(readings) and not spins
    if not moves and not (works and (strong or signs)):
        return None
    return Diagnosis(
        verdict="benign_wait",
        cause="log_buffering",
        certainty=Certainty.SUPPORTED if signs else Certainty.SUSPECTED,
        sentence="nothing is written, but the GPUs compute: the output waits in a buffer",
        reasons_for=(*(quote(fact) for fact in busy[:2]), *(quote(told.last) for told in signs[:1])),
        reasons_against=("utilisation alone is no proof of work: a waiting NCCL kernel shows 100 %",),
        suggested=("Run Python with -u or PYTHONUNBUFFERED=1",),
    )


def _whole_blocks(told: Told) -> bool:
    """Whether the log's size is one that a writer's buffer leaves (a multiple of 4096)."""
    size = told.last.number("size") or told.last.number("size2")
    return size is not None and size > 0 and size % 4096 == 0


def _first_step(story: Story, silence: float | None) -> Diagnosis | None:
    """Before any second step: kernels are chosen, graphs built, caches filled."""
    begun = story.told(Kind.PHASE, "first_step", "training", "ready")
    if story.pace is not None and story.pace.last.step > 1:
        return None
    told = story.told(Kind.PHASE, "first_step") or (begun if story.pace is None or story.pace.last.step <= 1 else [])
    earlier = max((seconds for each in story.told(Kind.OBSERVED, "earlier") if (seconds := stated_seconds(each.last))), default=None)
    if not told or silence is None or silence > (_BUDGETS_S["compiling"] if earlier is None else _AS_BEFORE * earlier):
        return None
    return Diagnosis(
        verdict="benign_wait",
        cause="slow_first_step",
        sentence=f"the first step has run for {say_duration(silence)}: it chooses kernels, builds graphs and fills caches",
        reasons_for=tuple(quote(each.last) for each in told[-1:]),
        reasons_against=("a first collective that never ends would look alike: look again, or take stacks",),
        suggested=("Wait; take stacks if it lasts (`rankpatrol capture --pid PID`)",),
    )


def _one_behind(story: Story) -> tuple[int, int, int] | None:
    """The one rank whose counter ends lower than that of all others, where all count alike: (rank, its step, theirs)."""
    counters = {key[1]: counter for key, counter in story.ledger.counters.items() if key[0] == "rank" and isinstance(key[1], int)}
    if len(counters) < 3 or len({counter.strength for counter in counters.values()}) > 1:
        return None
    lines = [counter.count for counter in counters.values()]
    steps = {rank: counter.marks()[-1].step for rank, counter in counters.items()}
    highest = max(steps.values())
    low = [rank for rank, step in steps.items() if step < highest]
    if len(low) != 1 or max(lines) - min(lines) > 1 or len(counters) < len(story.ranks):
        return None
    return low[0], steps[low[0]], highest


def _behind(story: Story, behind: tuple[int, int, int], length: str, reasons: tuple[str, ...]) -> Diagnosis:
    rank, step, theirs = behind
    return Diagnosis(
        verdict="hang",
        cause="unknown",
        culprit_ranks=(rank,),
        victim_ranks=tuple(sorted(story.ranks - {rank})),
        sentence=f"rank {rank} has stood at step {step} {length}, and all others at {theirs}: they wait for it",
        reasons_for=reasons,
        reasons_against=("one line of evidence: a line of that rank may be in a buffer",),
        suggested=(f"Take the stack of rank {rank} now (`rankpatrol capture --pid PID`), before anything is ended",),
    )


def _waits_for_loader(story: Story, silence: float | None) -> Diagnosis | None:
    """One rank's last word is that it waits for its loader; or a fork was warned of, and loader processes sit in a lock."""
    waiting = [told for told in story.told(Kind.PHASE, "loader_wait") if told.last.teller.rank is not None]
    ranks = {told.last.teller.rank for told in waiting}
    locked, forked = story.told(Kind.OBSERVED, "loader_lock"), story.told(Kind.SYMPTOM, "fork_warning")
    if len(ranks) != 1 and not (locked and forked):
        return None
    rank = ranks.pop() if len(ranks) == 1 else None
    stuck = story.told(Kind.OBSERVED, "kernel_state")
    length = f" for {say_duration(silence)}" if silence is not None else ""
    return Diagnosis(
        verdict="hang",
        cause="data_loader_fork_lock" if locked and forked else "data_loader_worker_stuck",
        culprit_ranks=(rank,) if rank is not None else None,
        certainty=Certainty.SUPPORTED if stuck or locked else Certainty.SUSPECTED,
        sentence=f"{f'rank {rank}' if rank is not None else 'a rank'} waits for its loader processes, which deliver nothing{length}",
        reasons_for=tuple(quote(told.last) for told in (waiting + forked + locked + stuck)[:3]),
        suggested=("Take the stacks of that rank's loader processes (`rankpatrol capture --pid PID`)",),
    )


def _frozen_pulse(story: Story) -> Told | None:
    """A sign of life whose own counter does not move for long."""
    for told in story.told(Kind.PULSE):
        span = seconds_between(told.first.at, told.last.at)
        if (
            "step" in told.last.values
            and told.first.values.get("step") == told.last.values["step"]
            and span is not None
            and span > _STALL_S
        ):
            return told
    return None


def _stalled(story: Story, silence: float | None, pulse: Told | None) -> Diagnosis:
    step = f" after step {story.pace.last.step}" if story.pace is not None else ""
    reasons = [quote(told.last) for told in story.told(Kind.SILENCE)[:1] + story.told(Kind.NOW)[:1]]
    against: tuple[str, ...] = ()
    if pulse is not None:
        reasons = [f"signs of life come, but their counter stands: {quote(pulse.last)}"]
    if not reasons and story.last_activity is not None:
        reasons = [f"the last line that is no mere sign of life: {quote(story.last_activity)}"]
    gpus = [told.last for told in story.told(Kind.GPU) if (told.last.number("util") or 0) >= 95]
    if gpus:
        against = ("utilisation of 100 % is no work: a waiting kernel shows it, at low power",)
    if (loader := _waits_for_loader(story, silence)) is not None:
        return loader
    fs = story.told(Kind.SYMPTOM, "fs_stall", "hung_task")
    length = f"for {say_duration(silence)}" if silence is not None else "while the signs of life go on"
    behind = _one_behind(story)
    if behind is not None and pulse is None and not fs:
        return _behind(story, behind, length, tuple(reasons))
    return Diagnosis(
        verdict="hang",
        cause="filesystem_stall" if fs else "unknown",
        certainty=Certainty.SUPPORTED if fs or pulse is not None else Certainty.SUSPECTED,
        sentence=f"nothing moves{step} {length}, longer than this job's own pace allows; who holds it up is not said",
        reasons_for=(*reasons, *(quote(told.first) for told in fs[:1])),
        reasons_against=against,
        suggested=("Take the stacks of all ranks now (`rankpatrol capture --pid PID` or `--job ID`), before anything is ended",),
    )
