"""Puts bad checkpoints aside before an attempt that would choose one by itself: scripts that take {checkpoint} are told, others look."""

from collections.abc import Callable

from rankpatrol.checkpoints.quarantine import NotQuarantined, condemn, plan_quarantine, quarantine
from rankpatrol.checkpoints.report import Selection
from rankpatrol.core.records import Missing
from rankpatrol.journal import Journal
from rankpatrol.launch.rundir import JobSpec


def chooses_by_itself(spec: JobSpec) -> bool:
    """True where the command has no place for the checkpoint that we verified."""
    return not any("{checkpoint}" in word for word in spec.command)


class SettingAside:
    """Renames what a script of this job would wrongly take for its newest checkpoint; only under a policy that acts."""

    def __init__(self, spec: JobSpec, journal: Journal, announce: Callable[[str, str], None], now_unix_s: Callable[[], float]) -> None:
        self.wanted = bool(spec.checkpoints) and spec.policy != "observe" and not spec.attached and chooses_by_itself(spec)
        self._journal, self._announce, self._now_unix_s = journal, announce, now_unix_s

    def put(self, attempt: int, selection: Selection | Missing, *, unchanged_for_s: float) -> None:
        """Rename the bad ones that are newer than the newest good one; each with its own proof, or told why not."""
        if not self.wanted or isinstance(selection, Missing):
            return
        reports = {report.path: report for report in selection.rejected}
        for planned in plan_quarantine(selection):
            report = reports.get(planned.path) or next((each for each in selection.rejected if each.path.startswith(planned.path)), None)
            if report is None:
                continue
            try:
                proof = condemn(report, planned, unchanged_for_s=unchanged_for_s, now_unix_s=self._now_unix_s())
                target = quarantine(planned, proof)
            except NotQuarantined as problem:
                self._announce(f"the script may load a bad checkpoint: {problem}", "alert")
                continue
            self._journal.tell("checkpoint_quarantined", attempt, path=planned.path, becomes=str(target), why=planned.why)
            self._announce(f"a bad checkpoint was put aside, so that the script does not load it: {target} ({planned.why})", "alert")
