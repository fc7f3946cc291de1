"""An answer from the output of torch's flight recorder analyser, which names whoever differs from the first dump it read."""

from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.formats.fr_trace_text import Accused, TraceFinding, read_fr_trace

_SHAPES = ("SIZE", "TENSOR", "DTYPE")


def diagnose_fr_trace(text: str) -> Diagnosis | None:
    """The first finding that names a mechanism; None where the text holds none."""
    findings = read_fr_trace(text)
    for finding in findings:
        if finding.missing or finding.accused:
            return _missing(finding) if finding.missing else _mismatch(finding)
    return None


def _missing(finding: TraceFinding) -> Diagnosis:
    """A rank that never came is named where others wait for it; which of two halves is late cannot be told."""
    waiting = tuple(rank for rank in finding.expected if rank not in finding.missing)
    named = finding.missing if len(finding.missing) < len(waiting) else None
    where = f"{finding.operation} #{finding.sequence} of {finding.group}"
    return Diagnosis(
        verdict="hang",
        cause="rank_missing_collective",
        culprit_ranks=named,
        victim_ranks=waiting,
        certainty=Certainty.SUPPORTED if named else Certainty.SUSPECTED,
        sentence=f"{say_ranks(finding.missing)} never entered {where}, in which {say_ranks(waiting) if waiting else 'the others'} wait",
        reasons_for=(f"torch's analyser lists {say_ranks(finding.missing)} as missing from {where}",),
        reasons_against=("why it did not come is not shown by flight recordings",),
        suggested=(f"Take stacks of {say_ranks(finding.missing)}, and read the end of its log",),
    )


def _mismatch(finding: TraceFinding) -> Diagnosis:
    """The analyser takes the first dump for right: where most ranks differ from it in the same way, that first one is the odd one out."""
    accused = {each.rank: each for each in finding.accused}
    others = tuple(rank for rank in finding.expected if rank not in accused)
    alike = len({(each.error, each.found) for each in finding.accused}) == 1
    turned = alike and len(accused) > len(others) > 0
    odd = others if turned else tuple(sorted(accused))
    named = odd if len(finding.expected) > 2 and len(odd) * 2 < len(finding.expected) else None
    first, disagree = finding.accused[0], "disagree" if len(odd) > 1 else "disagrees"
    where = f"#{finding.sequence} of {finding.group}"
    against = () if not turned else (f"the analyser calls {say_ranks(tuple(accused))} culprits, since it read {say_ranks(others)} first",)
    return Diagnosis(
        verdict="hang",
        cause="collective_mismatch_shape" if first.error.startswith(_SHAPES) else "collective_mismatch_op",
        culprit_ranks=named,
        victim_ranks=tuple(rank for rank in finding.expected if rank not in (named or ())),
        certainty=Certainty.SUPPORTED if named else Certainty.SUSPECTED,
        sentence=f"{say_ranks(odd)} {disagree} with the others on collective {where}: {_difference(first, turned)}",
        reasons_for=(f"{len(finding.expected) - len(odd)} of {len(finding.expected)} ranks agree with each other",),
        reasons_against=against,
        suggested=("Look for a branch on the rank, or on data of one rank, before this collective",),
    )


def _difference(first: Accused, turned: bool) -> str:
    odd, usual = (first.expected, first.found) if turned else (first.found, first.expected)
    return f"{odd} against {usual}" if odd and usual else first.error.replace("_", " ").lower()
