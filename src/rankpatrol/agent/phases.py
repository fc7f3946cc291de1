"""Which phase a job is in, from the phases of its ranks. Pure."""

from collections.abc import Iterable

# The others soon wait for a rank that is in an earlier one of these; a job is taken down only when all its ranks are.
_FIRST_WINS = ("checkpoint", "initialisation", "compile", "first_step", "evaluation", "train_step", "teardown")
_TRAINED = frozenset({"training", "checkpoint", "evaluation", "train_step", "teardown"})


def phase_of_job(before: str | None, marked: Iterable[str | None], *, joined: bool) -> str:
    """By the probes' marks where every living rank has one, else from outside: `starting` or `training`.

    A job that has trained does not start again when its groups are taken down.
    """
    phases = set(marked)
    if phases and phases <= set(_FIRST_WINS):
        return next(phase for phase in _FIRST_WINS if phase in phases)
    return "training" if joined or before in _TRAINED else "starting"
