"""A loss that is no number: the training goes on, and learns nothing any more. Pure."""

from collections.abc import Mapping

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.snapshot import LogSample


def lost_loss(logs: Mapping[int, LogSample]) -> Diagnosis | None:
    """What the ranks' logs say, or None where the last loss of each is a number. Nobody is blamed: one rank's NaN is soon everybody's."""
    lost = sorted(rank for rank, log in logs.items() if log.loss_lost)
    if not lost:
        return None
    rank = lost[0]
    log = logs[rank]
    at = "" if log.lost_at_step is None else f" since step {log.lost_at_step}"
    return Diagnosis(
        verdict="healthy",
        cause="loss_nan",
        certainty=Certainty.PROVED,
        sentence=f"the loss in the log of rank {rank} is {log.losses[-1]}{at}; the training goes on, and nothing is done about it",
        reasons_for=(f"the last losses in that log: {' '.join(log.losses)}",),
        suggested=("Stop it and go back to a checkpoint before this step; try a smaller learning rate, gradient clipping, or bf16.",),
    )
