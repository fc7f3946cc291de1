"""What the silences share: one rank works for longer than patience while the others wait for it."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.scene import Scene


class Silence(AtCall):
    """Rank 0 works at one moment of its run; nothing is wrong."""

    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.SILENT
    # A busy rank is judged some 15 s later than patience (F13): a silence that ends before could not fail.
    lasts_s = 45.0

    def rank(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 0

    def call(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 1
