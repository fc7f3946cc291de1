"""Looks at a crash while the failed rank's shim holds its exit back."""

from pathlib import Path

import msgspec

from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.roster import Roster
from rankpatrol.analysis.crash import diagnose_crash, may_be_a_full_disk
from rankpatrol.analysis.several import placed
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import DiskRoom, KernelKills
from rankpatrol.evidence.findings import speakable
from rankpatrol.evidence.host import disks, kernel_log
from rankpatrol.formats.kernel_log import kills
from rankpatrol.system.clock import Clock

# A victim's connection breaks before the culprit's interpreter has gone down; 2.7 s were measured for that.
_ECHO_WAIT_S, _ECHO_POLL_S = 4.0, 0.2


def look_at_crash(roster: Roster, eyes: Eyes, clock: Clock, checkpoints: str | None = None) -> Diagnosis | None:
    """Who ended first. Where only echoes are seen yet, the first cause gets a moment to show itself.

    `checkpoints`: a folder that ranks write to, which is asked for its room where a write of theirs has failed.
    """
    until_s = clock.mono_s() + _ECHO_WAIT_S
    while True:
        log, look = kernel_log(), eyes.look(full=True)
        known = log if isinstance(log, Missing) else KernelKills({**eyes.kills_elsewhere, **kills(log)})
        seen = msgspec.structs.replace(look, kills=known)
        if checkpoints is not None and may_be_a_full_disk(seen):
            seen = msgspec.structs.replace(seen, room=_room(checkpoints))
        eyes.keep_last(seen)
        found = diagnose_crash(seen)
        if found is None or found.culprit_ranks or clock.mono_s() >= until_s or eyes.attempt is None:
            return None if found is None else placed(speakable(found), seen.ranks)
        clock.sleep(_ECHO_POLL_S)
        eyes.attempt = roster.read(eyes.attempt.number)


def _room(path: str) -> DiskRoom | Missing:
    seen = disks((Path(path),)).get(path)
    if not isinstance(seen, dict):
        return seen if isinstance(seen, Missing) else Missing(f"the disk under {path} was not asked")
    return DiskRoom({path: seen["available_bytes"]})
