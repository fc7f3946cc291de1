"""The faults, one file each, behind one small port; found here by their id."""

import importlib
from typing import cast

from rankpatrol.core.errors import UsageProblem
from rankpatrol.drill.faults.port import Fault

_PLACES = {
    "F1": "f1:RaisesInForward",
    "F2-segv": "f2:SegmentationFault",
    "F2-abrt": "f2:Aborts",
    "F3": "f3:Killed",
    "F4": "f4:LeavesEarly",
    "F5": "f5:SleepsBeforeCollective",
    "F6a": "f6a:LoaderStopped",
    "F6b": "f6b:LoaderBlockedInRead",
    "F6b-open": "f6b:LoaderBlockedInOpen",
    "F6c": "f6cd:LoaderInheritsALock",
    "F6d": "f6cd:LoaderSpins",
    "F7": "f7:CheckpointBlocked",
    "F8": "f8:SkipsACollective",
    "F9-op": "f9:OtherCollective",
    "F9-shape": "f9:OtherSize",
    "F10": "f10:OppositeOrder",
    "F11": "f11:Stopped",
    "F13": "f13:Spins",
    "F14-gil": "f14:HoldsTheLock",
    "F14-below": "f14:LockedBelowPython",
    "F20": "f20:DiskFull",
    "F21-truncated": "f21:CheckpointTruncated",
    "F21-flipped": "f21:CheckpointFlipped",
    "F21-missing": "f21:ShardMissing",
    "F21-latest": "f21:StaleLatest",
    "F21-killed": "f21:KilledWhileSaving",
    "F17-50": "f17:HalfAsSlowAgain",
    "F17-200": "f17:ThreeTimesAsSlow",
    "F17-cpu": "f17:ComputesMore",
    "F18": "f18:AllSlower",
    "F19": "f19:CpusTaken",
    "F24": "f24:LossOverflows",
    "F22-signal": "f22:KilledAtSignal",
    "F22-alert": "f22:KilledAtAlert",
    "F22-verdict": "f22:KilledAtVerdict",
    "F22-sealed": "f22:KilledAtSeal",
    "F22-action": "f22:KilledAtAction",
    "F22-launcher": "f22_launcher:LauncherKilled",
    "F23": "f23:OrphansBesideAStranger",
    "F25": "f25:FailsEachTime",
    "F26": "f26:NeverGoes",
    "F27": "f27:ConditionalCollective",
    "N1": "n1:SlowFirstStep",
    "N2": "n2:SilentEvaluation",
    "N3": "n3:SlowCheckpoint",
    "N4a": "n4:PreparesFiles",
    "N4b": "n4:BuildsVocabulary",
    "N4c": "n17:CopiesInAChild",
    "N5": "n5:SlowDownload",
    "N6-rank0": "n6:OneRankLogs",
    "N6-block": "n6:LinesByTheBlock",
    "N6-none": "n6:NoLines",
    "N7": "n7:SleepsTalking",
    "N8": "n8:Pause",
    "N9-ahead": "n9:AheadInASilence",
    "N9-back": "n9:BackInASilence",
    "N9-ahead-F5": "n9:AheadInAHang",
    "N9-back-F5": "n9:BackInAHang",
    "N11-suspended": "n11:Suspended",
    "N11-traced": "n11:Traced",
    "N11-breakpoint": "n11:AtABreakpoint",
    "N11-paused": "n11:Paused",
    "N12": "n12:MinutesLongSteps",
    "N12-F5": "n12:AsleepBetweenLongSteps",
    "N13": "n13:LateLeaver",
    "N14-term": "n14:Preempted",
    "N15": "n15:TwoJobs",
    "N15-all": "n15:TwoJobsUnderOneWatch",
    "N16": "n16:StorageHiccups",
    "N17": "n17:LoadsByMmap",
    "N18": "n18:TimeOutBeforePatience",
    "ends-well": "ends_well:EndsWell",
    "exits-at-once": "exits_at_once:ExitsAtOnce",
    "ctrl-c": "ctrl_c:CtrlC",
}


def fault_ids() -> tuple[str, ...]:
    """Every id that `make` knows, in the order of the fault matrix."""
    return tuple(_PLACES)


def make(fault_id: str) -> Fault:
    """A fresh fault for one run; letter case does not matter. Raises UsageProblem for an unknown id."""
    known = {name.casefold(): place for name, place in _PLACES.items()}
    if (place := known.get(fault_id.casefold())) is None:
        raise UsageProblem(f"there is no drill {fault_id!r}", help=f"Choose from: {', '.join(_PLACES)}.")
    module, name = place.split(":")
    return cast("Fault", getattr(importlib.import_module(f"{__name__}.{module}"), name)())
