"""What other settings would have made of the same recording, attempt by attempt. Pure."""

from rankpatrol.core.counts import say_count
from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Record
from rankpatrol.replay.play import Replayed, harmful

_KINDS = ("alert", "verdict", "action")


class Difference(Record, frozen=True, kw_only=True):
    """The first alert, verdict or action of one attempt, under both settings, in seconds from the begin; None: it never came."""

    attempt: int
    kind: str
    recorded_s: float | None
    now_s: float | None


def differences(recorded: Replayed, now: Replayed) -> tuple[Difference, ...]:
    """Every kind of every attempt in which either settings say something."""
    attempts = sorted({entry.attempt for entry in (*recorded.entries, *now.entries)})
    found = [
        Difference(attempt=attempt, kind=kind, recorded_s=_first(recorded, attempt, kind), now_s=_first(now, attempt, kind))
        for attempt in attempts
        for kind in _KINDS
    ]
    return tuple(each for each in found if (each.recorded_s, each.now_s) != (None, None))


def say(difference: Difference) -> str:
    """One difference as a sentence's end."""
    was, now = difference.recorded_s, difference.now_s
    if was is None and now is not None:
        return f"at +{now:.1f} s; the recorded settings had none"
    if was is not None and now is None:
        return f"none; under the recorded settings at +{was:.1f} s"
    if was is None or now is None or was == now:
        return f"as recorded, at +{now or 0:.1f} s"
    earlier = "sooner" if now < was else "later"
    return f"{say_duration(abs(now - was))} {earlier}: at +{now:.1f} s, not +{was:.1f} s"


def conclusions(now: Replayed) -> tuple[str, ...]:
    """What the user asked: would a healthy attempt have been ended, and what cannot be known."""
    said = [
        f"attempt {ending.attempt} would have been ended at +{ending.at_s:.1f} s, "
        f"but went on by itself {say_duration(ending.went_on_s or 0)} later"
        for ending in harmful(now.endings)
    ]
    if not said:
        said.append("no attempt would have been ended that then went on by itself")
    said += [
        f"the verdict on attempt {attempt} at +{at_s:.1f} s was on a job that then went on by itself; --policy recover would have ended it"
        for attempt, at_s in _recovered_verdicts(now)
    ]
    if any(ending.goes_on_unseen for ending in now.endings) and now.policy != now.recorded_policy:
        said.append("the recorded patrol ended the attempt itself, so whether it would have gone on by itself is not known")
    if now.looks_missed:
        were = "was" if now.looks_missed == 1 else "were"
        said.append(
            f"{say_count(now.looks_missed, 'look')} that these settings ask for {were} not taken then: "
            "the next one recorded stands for each, "
            "so times are the latest possible"
        )
    return tuple(said)


def _recovered_verdicts(replayed: Replayed) -> tuple[tuple[int, float], ...]:
    """Verdicts of incidents that closed by themselves, nobody having acted."""
    recovered = {entry.incident for entry in replayed.entries if entry.kind == "incident_closed" and entry.what == "recovered"}
    return tuple((entry.attempt, entry.at_s) for entry in replayed.entries if entry.kind == "verdict" and entry.incident in recovered)


def _first(replayed: Replayed, attempt: int, kind: str) -> float | None:
    return next((entry.at_s for entry in replayed.entries if (entry.attempt, entry.kind) == (attempt, kind)), None)
