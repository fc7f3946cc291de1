"""A drill in virtual time: a tape through the replay, as if the drill had run."""

from itertools import chain

from rankpatrol.core.errors import BadInput
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults.port import Fault
from rankpatrol.drill.outcome import Outcome
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import write_truth
from rankpatrol.judge.tape import TapeBegan
from rankpatrol.replay.play import Entry, replay


def play_tape(fault: Fault, scene: Scene, *, run_number: int, seed: str) -> Outcome | None:
    """The outcome of a fault that is a tape; None for one that needs real ranks."""
    if (made := fault.tape(scene)) is None:
        return None
    truth, items = made
    scene.truth.parent.mkdir(parents=True)
    write_truth(scene.truth, truth)
    items = iter(items)
    begin = next(items)
    if not isinstance(begin, TapeBegan):
        raise BadInput("the drill's tape does not begin as one")
    done = replay(chain((begin,), items))
    return Outcome(
        fault=fault.id,
        expects=fault.expects,
        verdict=fault.verdict,
        causes=fault.causes,
        run=run_number,
        seed=seed,
        truth=truth,
        onset_unix_s=truth.at_unix_s or begin.unix_s,
        ended_unix_s=begin.unix_s + done.seconds,
        resume_step=None,
        events=tuple(_event(entry, begin.unix_s) for entry in done.entries),
        exit_code=0,
        finished=True,
        bundles={},
        left=(),
        seconds=done.seconds,
        folder=str(scene.folder),
        virtual=True,
    )


def _event(entry: Entry, began_unix_s: float) -> Event:
    """An entry of the replay as the journal would have told it: its words are `verdict / cause (certainty)`."""
    words, _, certainty = entry.what.removesuffix(")").partition(" (")
    verdict, _, cause = words.rpartition(" / ")
    names = entry.kind in {"alert", "verdict"}
    return Event(
        at_unix_s=began_unix_s + entry.at_s,
        kind=entry.kind,
        attempt=entry.attempt,
        incident=entry.incident,
        verdict=verdict or None if names else None,
        cause=cause if names else None,
        certainty=certainty or None if names else None,
        suspect_ranks=entry.culprit_ranks if entry.kind == "alert" else None,
        culprit_ranks=entry.culprit_ranks if entry.kind == "verdict" else None,
        sentence=entry.sentence,
        onset_unix_s=None if entry.onset_s is None else began_unix_s + entry.onset_s,
        what=None if names else entry.what,
        how=entry.what if entry.kind == "incident_closed" else None,
    )
