"""Shards of one optimizer step together: one that stands elsewhere is left over from another step."""

from collections import Counter
from collections.abc import Iterator

from rankpatrol.checkpoints.report import lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView


def odd_optimizers(view: SetView, names: list[str]) -> Iterator[Problem]:
    """The files whose optimizer stands at another step than the other ranks'."""
    steps = {name: step for name in names if (inside := view.inside(name)) and (step := inside.optimizer_step()) is not None}
    counted = Counter(steps.values()).most_common()
    if len(counted) < 2:
        return
    # Without a majority the lower is the left-over one: a save writes what is new.
    usual = counted[0][0] if counted[0][1] > counted[1][1] else max(step for step, count in counted if count == counted[0][1])
    for name, step in steps.items():
        if step != usual:
            said = f"is of another step: its optimizer stands at {step}, the other ranks' at {usual}"
            yield view.problem(name, lacking(said, key="step"))
