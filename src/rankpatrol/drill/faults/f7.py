"""F7: a checkpoint's write blocks."""

from rankpatrol.drill.faults.n3 import SlowCheckpoint
from rankpatrol.drill.faults.port import Expectation


class CheckpointBlocked(SlowCheckpoint):
    """Rank 0 writes into storage that takes no more, inside `torch.save`; checkpoints are given twice the patience."""

    id = "F7"
    verdict = "hang"
    causes = ("filesystem_stall",)
    expects = Expectation.RECOVERS
    suspect_s = 30.0
    ended_s = 60.0
    do = "fill_a_pipe"
