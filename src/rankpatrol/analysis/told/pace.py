"""Jobs that go on, but slowly: a rank's own part of the step stands out, all wait for data, or nobody can be named."""

import re
from statistics import median

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import certainty, named, quote
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind

_PART = re.compile(r"\b(?P<name>[a-z][a-z_]*?)_(?P<unit>ms|s|time)[=:] ?(?P<n>\d+(?:\.\d+)?)")
_STEP = frozenset({"step", "iter", "iteration", "total", "batch"})
# These end before the ranks meet in the gradient reduction: only they can tell one rank from another.
_OWN_PARTS = (
    "data_wait",
    "data",
    "data_load",
    "dataload",
    "dataloader",
    "load",
    "h2d",
    "host",
    "fetch",
    "forward",
    "fwd",
    "preproc",
    "collate",
)
_DATA_PARTS = frozenset({"data_wait", "data", "data_load", "dataload", "dataloader", "load", "fetch", "collate", "preproc"})
_STANDS_OUT = 2.0
_SLOWER = 1.3
_SLOWER_THAN_SAID = 1.15  # than what the observer calls usual
_MUCH_SLOWER = 1.4  # than at its own beginning: lengths of sequences differ
_MOSTLY = 0.4
_FEWEST = 3
_STANDS_OUT_IN_A_REPORT = 1.3
_PAIR = re.compile(r"(\d{1,5})\]? ?[=:] ?(\d+(?:\.\d+)?)")
_WAITING = re.compile(r"wait|comm|all_?reduce|all_?gather|barrier|sync|nccl|idle", re.IGNORECASE)


def slow(story: Story) -> Diagnosis | None:
    """From the parts of a step, rank by rank. What contains a collective is the same on all ranks and names nobody."""
    if story.waits or story.failures or (story.went_down and not story.goes_on):
        return None
    reported = reported_straggler(story)
    if reported is not None:
        return _reported(story, reported)
    parts = _parts(story)
    if not parts:
        return _meters(story) or _slower_than_usual(story)
    steps = [value for rank in parts.values() for name, value in rank.items() if name in _STEP]
    return _one_stands_out(story, parts) or _all_wait_for_data(story, parts, steps) or _nobody(story, parts, steps)


class Reported(Record, frozen=True, kw_only=True):
    """The one rank that a report of all ranks' own times shows to be much slower than the others."""

    rank: int
    value: float
    others: float
    name: str
    fact: Fact


def reported_straggler(story: Story) -> Reported | None:
    """From lists of one number a rank. Times of waiting and of communication say the opposite: who comes last waits least."""
    for name, by_rank, fact in _reports(story):
        if len(by_rank) < _FEWEST or _WAITING.search(name) or story.long_ago(fact):
            continue
        worst = max(by_rank, key=lambda rank: by_rank[rank])
        others = [value for rank, value in by_rank.items() if rank != worst]
        if by_rank[worst] > _STANDS_OUT_IN_A_REPORT * median(others) and by_rank[worst] > _STANDS_OUT_IN_A_REPORT * max(others):
            return Reported(rank=worst, value=by_rank[worst], others=median(others), name=name, fact=fact)
    return None


def _reports(story: Story) -> list[tuple[str, dict[int, float], Fact]]:
    found = []
    for told in story.told(Kind.TIMES, "by_rank"):
        pairs = {int(rank): float(value) for rank, value in _PAIR.findall(told.last.values["pairs"])}
        found.append((told.last.values["name"], pairs, told.last))
    listed = [told.last for told in story.told(Kind.TIMES, "listed") if told.last.teller.rank is not None]
    if listed:
        by_rank = {fact.teller.rank: fact.number("value") or 0.0 for fact in listed if fact.teller.rank is not None}
        worst = max(listed, key=lambda fact: fact.number("value") or 0.0)
        found.append(("its own part of a step", by_rank, worst))
    scored = {int(told.last.values["rank"]): 1 / score for told in story.told(Kind.TIMES, "score") if (score := told.last.number("score"))}
    if scored:
        last = story.told(Kind.TIMES, "score")[-1].last
        found.append(("the same work (by the report's scores)", scored, last))
    return found


def _reported(story: Story, found: Reported) -> Diagnosis:
    data = any(word in found.name.lower() for word in ("data", "load", "fetch", "input"))
    hot = story.told(Kind.SYMPTOM, "clock_low")
    return Diagnosis(
        verdict="slow",
        cause="slow_input" if data else "gpu_slow" if hot else "straggler",
        culprit_ranks=(found.rank,),
        certainty=certainty(True, hot or slowdown(story)),
        sentence=f"rank {found.rank} needs {found.value:g} for {found.name} where the others need {found.others:g}; "
        "all wait for it in each step",
        reasons_for=(quote(found.fact), *(quote(told.first) for told in hot[:1])),
        reasons_against=() if hot else ("one report: a single slow step would look alike",),
        suggested=("Compare that GPU's clocks and temperature, and its host's load, with the others'",),
    )


def _parts(story: Story) -> dict[int, dict[str, float]]:
    """Milliseconds, or whatever the unit, by rank and part; the last line of each rank."""
    found: dict[int, dict[str, float]] = {}
    for told in story.told(Kind.TIMES, "rank"):
        numbers = {seen["name"]: float(seen["n"]) for seen in _PART.finditer(told.last.text)}
        rank = told.last.number("rank") if "rank" in told.last.values else told.last.teller.rank
        if rank is not None:
            found[int(rank)] = numbers
    return {rank: numbers for rank, numbers in found.items() if numbers}


def _one_stands_out(story: Story, parts: dict[int, dict[str, float]]) -> Diagnosis | None:
    for name in _OWN_PARTS:
        by_rank = {rank: numbers[name] for rank, numbers in parts.items() if name in numbers}
        if len(by_rank) < 3:
            continue
        worst = max(by_rank, key=lambda rank: by_rank[rank])
        others = median(value for rank, value in by_rank.items() if rank != worst)
        step = max((value for key, value in parts[worst].items() if key in _STEP), default=0.0)
        if by_rank[worst] > _STANDS_OUT * others and by_rank[worst] - others > 0.1 * step:
            return _straggler(story, worst, name, by_rank[worst], others)
    return None


def _meters(story: Story) -> Diagnosis | None:
    """The meters of torchvision, MMEngine and the like: time a batch, and how much of it is waiting for data."""
    for told in story.told(Kind.TIMES, "meter"):
        fact = told.last
        time = fact.number("time_now") or fact.number("time_usual") or fact.number("time_usual2")
        data = fact.number("data_now") or fact.number("data_usual") or fact.number("data_usual2")
        if time and data and data >= _MOSTLY * time and told.count > 1:
            return Diagnosis(
                verdict="slow",
                cause="slow_input",
                certainty=Certainty.SUPPORTED,
                sentence=f"waiting for data takes {100 * data / time:.0f} % of each batch",
                reasons_for=(quote(fact),),
                suggested=("More loader processes, a larger prefetch_factor, or data on faster storage",),
            )
    return None


def _slower_than_usual(story: Story) -> Diagnosis | None:
    """What the lines state of a step, against what the observer calls usual, or against their own beginning."""
    recent, before, why = _paces(story)
    if recent is None or before is None or recent < (_SLOWER_THAN_SAID if why == "is usual" else _MUCH_SLOWER) * before:
        return None
    return Diagnosis(
        verdict="slow",
        cause="straggler_unattributable",
        certainty=Certainty.SUSPECTED,
        sentence=f"a step takes {recent:g} s where {before:g} s {why}; whose fault it is these lines do not say",
        reasons_for=(f"the last step seen is {story.pace.last.step if story.pace else '?'}",),
        suggested=("Compare the ranks' own times (data, forward) and their GPUs' clocks",),
    )


def slowdown(story: Story) -> tuple[float, float] | None:
    """Seconds a step, now and before, where a job became much slower."""
    recent, before, _ = _paces(story)
    if (recent is None or before is None) and story.pace is not None and len(story.pace.stated_s) >= _FEWEST:
        stated = story.pace.stated_s
        recent, before = median(stated[-2:]), stated[0]
    return (recent, before) if recent is not None and before is not None and recent >= _MUCH_SLOWER * before else None


def _paces(story: Story) -> tuple[float | None, float | None, str]:
    pace = story.pace
    for told in story.told(Kind.TIMES, "before_after"):
        return told.last.number("after"), told.last.number("before"), "was usual"
    if pace is None or len(pace.stated_s) < 2:
        return None, None, ""
    recent = median(pace.stated_s[-3:])
    for told in story.told(Kind.TIMES, "baseline"):
        usual = told.last.number("ms")
        if usual:
            return recent, usual / (1.0 if told.last.values.get("unit") == "s" else 1000.0), "is usual"
    half = len(pace.stated_s) // 2
    return (recent, median(pace.stated_s[:half][-5:]), "was usual") if half >= 3 else (recent, None, "")


def _at_its_begin(story: Story) -> float | None:
    """What a step took in the first lines that give its parts."""
    first = [
        float(seen["n"])
        for told in story.told(Kind.TIMES, "rank")
        if told.count > 1
        for seen in _PART.finditer(told.first.text)
        if seen["name"] in _STEP
    ]
    return median(first) if first else None


def _straggler(story: Story, rank: int, name: str, value: float, others: float) -> Diagnosis:
    return Diagnosis(
        verdict="slow",
        cause="slow_input" if name in _DATA_PARTS else "straggler",
        culprit_ranks=named(rank),
        certainty=Certainty.SUPPORTED,
        sentence=f"rank {rank} spends {value:g} in {name} where the others spend {others:g}; all wait for it in each step",
        reasons_for=tuple(
            quote(told.last)
            for told in story.told(Kind.TIMES, "rank")
            if told.last.values.get("rank", told.last.teller.rank) in {rank, str(rank)}
        ),
        reasons_against=("one line a rank: a single slow step would look alike",),
        suggested=(
            "Look at that rank's storage and loader processes"
            if name in _DATA_PARTS
            else "Compare that GPU's clocks and its host's load with the others'",
        ),
    )


def _all_wait_for_data(story: Story, parts: dict[int, dict[str, float]], steps: list[float]) -> Diagnosis | None:
    data = [max((value for name, value in numbers.items() if name in _DATA_PARTS), default=0.0) for numbers in parts.values()]
    if not steps or median(data) < _MOSTLY * median(steps):
        return None
    return Diagnosis(
        verdict="slow",
        cause="slow_input",
        certainty=Certainty.SUPPORTED,
        sentence=f"the ranks wait for data in {100 * median(data) / median(steps):.0f} % of each step",
        reasons_for=tuple(quote(told.last) for told in story.told(Kind.TIMES, "rank")[:2]),
        suggested=("More loader processes, a larger prefetch_factor, or data on faster storage",),
    )


def _nobody(story: Story, parts: dict[int, dict[str, float]], steps: list[float]) -> Diagnosis | None:
    usual = [told.last.number("ms") for told in story.told(Kind.TIMES, "baseline")]
    before = next((value for value in usual if value), None)
    if before is None and (begun := _at_its_begin(story)) is not None:
        before = begun * _MUCH_SLOWER / _SLOWER
    if before is None or not steps or median(steps) < _SLOWER * before or len(parts) < 2:
        return None
    return Diagnosis(
        verdict="slow",
        cause="straggler_unattributable",
        certainty=Certainty.SUPPORTED,
        sentence=f"a step takes {median(steps):g} where it took {_at_its_begin(story) or before:g}, alike on all ranks: who holds the "
        "others up cannot be told from these times",
        reasons_for=(
            *(quote(told.last) for told in story.told(Kind.TIMES, "baseline")[:1]),
            *(quote(told.last) for told in story.told(Kind.TIMES, "rank")[:2]),
        ),
        reasons_against=("the backward pass ends in a collective: its time is the slowest rank's on every rank",),
        suggested=("Record when each rank enters the collective (flight recorder, time_created_ns), or measure kernels alone",),
    )
