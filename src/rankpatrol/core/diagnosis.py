"""The answer of `analysis`, in the words that CONTRACT fixes for `diagnosis.json` and `diagnose --json`."""

from enum import StrEnum

import msgspec

from rankpatrol.core.records import ProcessId, Record


class Certainty(StrEnum):
    """How much stands behind a diagnosis. Only PROVED, or SUPPORTED after patience, is ever acted upon."""

    PROVED = "proved"
    SUPPORTED = "supported"
    SUSPECTED = "suspected"


class Diagnosis(Record, frozen=True, kw_only=True):
    """Who the others wait for and why. `culprit_ranks` is None where nobody can be named; a benign wait fills `awaited_ranks`.

    `phase` is what the awaited ranks are in, where their stacks tell; `place` is the culprit's line of code; `failure` is what befell
    whoever failed first, without who that was: two failures are compared by it. `not_to_be_ended` says why ending the job would not help.
    `quiet_since_mono_s` is the first of the looks (Snapshot.at_mono_s) in all of which nothing got done.
    """

    verdict: str
    cause: str
    culprit_ranks: tuple[int, ...] | None = None
    awaited_ranks: tuple[int, ...] | None = None
    victim_ranks: tuple[int, ...] = ()
    certainty: Certainty = Certainty.SUSPECTED
    sentence: str
    reasons_for: tuple[str, ...] = msgspec.field(name="for", default=())
    reasons_against: tuple[str, ...] = msgspec.field(name="against", default=())
    suggested: tuple[str, ...] = ()
    phase: str | None = None
    not_to_be_ended: str | None = None
    place: str | None = None
    failure: str | None = None
    process: ProcessId | None = None
    file: str | None = None
    file_offset_bytes: int | None = None
    quiet_since_mono_s: float | None = None
