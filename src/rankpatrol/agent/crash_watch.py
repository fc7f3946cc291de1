"""Looks at a crash: while the failed rank goes down, and while its shim holds its exit back."""

from pathlib import Path

import msgspec

from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.roster import Attempt, Roster
from rankpatrol.analysis.crash import diagnose_crash
from rankpatrol.analysis.crash_causes import may_be_a_full_disk
from rankpatrol.analysis.several import placed
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import DiskRoom, KernelKills, Marks, Snapshot
from rankpatrol.evidence.findings import speakable
from rankpatrol.evidence.host import disks, kernel_log
from rankpatrol.formats.kernel_log import kills
from rankpatrol.judge.tape import CrashFound
from rankpatrol.system.clock import Clock

# A victim's connection breaks before the culprit's interpreter has gone down; 2.7 s were measured for that.
_ECHO_WAIT_S, _ECHO_POLL_S = 4.0, 0.2
# Before it has joined its peers a rank cannot fail of them. The same script starts on all of them, and may fail a moment later.
_ALIKE_WAIT_S = 2.0


def look_at_crash(roster: Roster, eyes: Eyes, clock: Clock, checkpoints: str | None = None) -> Diagnosis | None:
    """Who ended first. Where only echoes are seen yet, the first cause gets a moment to show itself, and so do ranks that fail alike.

    Whoever is gone without a word gets the same moment, while its shim lives: the word is on its way as a rule.

    `checkpoints`: a folder that ranks write to, which is asked for its room where a write of theirs has failed.
    """
    began_s = clock.mono_s()
    while True:
        log, look = kernel_log(), eyes.look(full=True)
        known = log if isinstance(log, Missing) else KernelKills({**eyes.kills_elsewhere, **kills(log)})
        seen = msgspec.structs.replace(look, kills=known)
        if checkpoints is not None and may_be_a_full_disk(seen):
            seen = msgspec.structs.replace(seen, room=_room(checkpoints))
        eyes.keep_last(seen)
        found = diagnose_crash(seen)
        if found is None:
            return None
        clear = bool(found.failure) or (bool(found.culprit_ranks) and not _word_to_come(seen, found, eyes.attempt))
        most_s = _ECHO_WAIT_S if not clear else _ALIKE_WAIT_S if _at_the_start(seen) else 0.0
        if clock.mono_s() >= began_s + most_s or eyes.attempt is None:
            return placed(speakable(found), seen.ranks)
        clock.sleep(_ECHO_POLL_S)
        eyes.attempt = roster.read(eyes.attempt.number)


def _word_to_come(seen: Snapshot, found: Diagnosis, attempt: Attempt | None) -> bool:
    """True where a named rank's exit is not told, though its shim lives."""
    silent = {sample.rank for sample in seen.ranks if sample.exit_status is None and isinstance(sample.process, Missing)}
    return bool(silent & {*(found.culprit_ranks or ())} - (attempt.gone if attempt else frozenset()))


def look_at_raise(eyes: Eyes) -> tuple[float, Diagnosis] | None:
    """When a rank raised what nobody handled (monotonic) and what, while its interpreter goes down: that took up to 10 s under load.

    The last light round tells it, without stacks: to take them lasts seconds on a machine that is as busy.
    """
    if all(marks.raised_at_mono_s is None for marks in eyes.marks.values()):
        return None
    seen = eyes.lightly()
    found = diagnose_crash(seen)
    culprits = () if found is None else found.culprit_ranks or (tuple(eyes.marks) if found.failure else ())
    times = [at_s for rank in culprits if rank in eyes.marks and (at_s := eyes.marks[rank].raised_at_mono_s) is not None]
    if found is None or not times:
        return None
    return min(times), placed(speakable(found), seen.ranks)


def _at_the_start(seen: Snapshot) -> bool:
    """True while ranks live, or have not come yet, and none has made a process group."""
    marks = [sample.marks for sample in seen.ranks if isinstance(sample.marks, Marks)]
    ended = sum(sample.exit_status is not None for sample in seen.ranks)
    return ended < seen.world_size and bool(marks) and not any(each.groups for each in marks)


def crash_found(eyes: Eyes, clock: Clock, found: Diagnosis) -> CrashFound:
    """What was found of a crash, for a recording."""
    exits = eyes.attempt.exits if eyes.attempt else {}
    now_s, now_unix_s = clock.mono_s(), clock.unix_s()
    onset_unix_s = min((seen.ended_unix_s for seen in exits.values()), default=now_unix_s)
    return CrashFound(at_s=now_s, onset_s=now_s - (now_unix_s - onset_unix_s), diagnosis=found)


def _room(path: str) -> DiskRoom | Missing:
    seen = disks((Path(path),)).get(path)
    if not isinstance(seen, dict):
        return seen if isinstance(seen, Missing) else Missing(f"the disk under {path} was not asked")
    return DiskRoom({path: seen["available_bytes"]})
