"""Adds up a job's events, one by one. Pure; what another writer has spoiled counts under `unknown` or not at all."""

from collections import deque
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import msgspec

from rankpatrol.metrics.records import Tally

# Over how long steps per second are told, and how far apart the times that are kept of it lie at least.
WINDOW_S = 60.0
_APART_S = 0.5
# Agents tell one a second at most.
_HELD_MOST = 200
# The brake counts the attempts that failed within an hour (act/brake.py).
HOUR_S = 3600.0
_FAILED_MOST = 1000
# What a float still counts exactly; nothing trains that long.
_STEP_MOST = 1 << 53
# A word of ours is short; a foreign one must not become a label of a megabyte, nor one of thousands.
_LONGEST_WORD, _WORDS_MOST = 40, 50
_OTHER = "unknown"
# Verdicts on a job that goes on are no failures of an attempt.
_GOES_ON = frozenset({"slow", "benign_wait", "healthy"})


def added(tally: Tally, event: Mapping[str, Any]) -> Tally:
    """The tally with one event more."""
    add = _KINDS.get(event.get("kind", ""))
    return tally if add is None else add(tally, event)


def total(events: Iterable[Mapping[str, Any]]) -> Tally:
    """The tally of all these. A long job has millions of steps: of those between two other events only the last ones matter."""
    tally, held = Tally(), deque[Mapping[str, Any]](maxlen=_HELD_MOST)
    for event in events:
        if event.get("kind") == "progress":
            held.append(event)
            continue
        tally = added(reduce(added, held, tally), event)
        held.clear()
    return reduce(added, held, tally)


def steps_per_s(tally: Tally, now_unix_s: float) -> float | None:
    """How fast steps were done in the last minute; 0 where none was, None where too few are known."""
    recent = [(at_s, step) for at_s, step in tally.recent if at_s <= now_unix_s]
    if len(recent) < 2:
        return None
    inside = [pair for pair in recent if pair[0] > now_unix_s - WINDOW_S]
    if not inside:
        return 0.0
    before = [pair for pair in recent if pair[0] <= now_unix_s - WINDOW_S]
    (from_s, first), (to_s, last) = (before[-1] if before else inside[0]), inside[-1]
    # A job that stands still has taken its last steps over the time up to now.
    over_s = max(to_s, now_unix_s) - from_s
    return (last - first) / over_s if over_s > 0 and last >= first else None


def failures_of_the_hour(tally: Tally, now_unix_s: float) -> int:
    """How many attempts failed within the last hour, as the brake counts them."""
    return sum(1 for onset_s in tally.failed.values() if now_unix_s - onset_s <= HOUR_S)


def _job_attempt(tally: Tally, _event: Mapping[str, Any]) -> Tally:
    return msgspec.structs.replace(tally, attempts=tally.attempts + 1, recent=(), progress_unix_s=None)


def _attempt_ended(tally: Tally, event: Mapping[str, Any]) -> Tally:
    return msgspec.structs.replace(tally, attempts_ended=_more(tally.attempts_ended, _word(event, "reason")))


def _progress(tally: Tally, event: Mapping[str, Any]) -> Tally:
    at_s, step = event.get("at_unix_s"), event.get("step")
    if not isinstance(at_s, int | float) or type(step) is not int or not 0 <= step <= _STEP_MOST:
        return tally
    kept = [pair for pair in tally.recent if at_s - pair[0] < WINDOW_S or pair is tally.recent[-1]]
    if kept and (step < kept[-1][1] or at_s < kept[-1][0]):
        kept = []  # a counter that begins anew, or a clock that was set back: what came before tells no pace
    elif len(kept) > 1 and at_s - kept[-2][0] < _APART_S:
        kept.pop()
    return msgspec.structs.replace(tally, progress_unix_s=float(at_s), recent=(*kept, (float(at_s), step)))


def _alert(tally: Tally, _event: Mapping[str, Any]) -> Tally:
    return msgspec.structs.replace(tally, alerts=tally.alerts + 1)


def _verdict(tally: Tally, event: Mapping[str, Any]) -> Tally:
    verdict, attempt, onset_s = _word(event, "verdict"), event.get("attempt"), event.get("onset_unix_s")
    failed = dict(tally.failed)
    if verdict not in _GOES_ON and isinstance(attempt, int) and isinstance(onset_s, int | float):
        failed[attempt] = float(onset_s)
        if len(failed) > _FAILED_MOST:
            del failed[min(failed)]
    return msgspec.structs.replace(tally, verdicts=_more(tally.verdicts, verdict), failed=failed)


def _sealed(tally: Tally, event: Mapping[str, Any]) -> Tally:
    seconds = event.get("seconds")
    took_s = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e11 else 0.0
    return msgspec.structs.replace(tally, bundles=tally.bundles + 1, sealing_s=tally.sealing_s + took_s)


def _seal_failed(tally: Tally, _event: Mapping[str, Any]) -> Tally:
    return msgspec.structs.replace(tally, seals_failed=tally.seals_failed + 1)


def _action(tally: Tally, event: Mapping[str, Any]) -> Tally:
    """Each step is told before it is done and after; the word after it counts."""
    what = _word(event, "what")
    match event.get("done"):
        case True:
            return msgspec.structs.replace(tally, actions_done=_more(tally.actions_done, what))
        case False:
            return msgspec.structs.replace(tally, actions_failed=_more(tally.actions_failed, what))
    return tally


def _closed(tally: Tally, event: Mapping[str, Any]) -> Tally:
    return msgspec.structs.replace(tally, closed=_more(tally.closed, _word(event, "how")))


def _word(event: Mapping[str, Any], name: str) -> str:
    word = event.get(name)
    return word if isinstance(word, str) and 0 < len(word) <= _LONGEST_WORD else _OTHER


def _more(counts: dict[str, int], word: str) -> dict[str, int]:
    """One more of this word; of more words than there can be of ours no new ones are taken."""
    if word not in counts and len(counts) >= _WORDS_MOST:
        return counts
    return {**counts, word: counts.get(word, 0) + 1}


_KINDS = {
    "attempt_started": _job_attempt,
    "attempt_ended": _attempt_ended,
    "progress": _progress,
    "alert": _alert,
    "verdict": _verdict,
    "bundle_sealed": _sealed,
    "seal_failed": _seal_failed,
    "action": _action,
    "incident_closed": _closed,
}
