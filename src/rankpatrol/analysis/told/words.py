"""How rules put ranks, places and quotes into words."""

from collections.abc import Collection

from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.testimony import Fact

_MOST_QUOTED = 160
_FEW = 8


def ranks_words(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 0-2 and 5`."""
    ordered = sorted(ranks)
    if not ordered:
        return "no rank"
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" if len(run) > 2 else f"{run[0]}, {run[1]}" for run in runs]
    shown = parts if len(parts) <= _FEW else [*parts[:_FEW], f"{len(parts) - _FEW} more"]
    return "ranks " + (", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else shown[0])


def quote(fact: Fact) -> str:
    """A line as evidence, with where it stands."""
    text = fact.text if len(fact.text) <= _MOST_QUOTED else fact.text[: _MOST_QUOTED - 1] + "…"
    return f"{fact.where.file}:{fact.where.line}: {text}"


def certainty(*lines: object) -> Certainty:
    """SUPPORTED where two independent lines agree, SUSPECTED where one speaks; what is None or empty does not speak."""
    return Certainty.SUPPORTED if sum(bool(line) for line in lines) >= 2 else Certainty.SUSPECTED


def named(rank: int | None) -> tuple[int, ...] | None:
    """The culprits of one rank that may not be known."""
    return None if rank is None else (rank,)


def who(rank: int | None, local_rank: int | None = None, host: str | None = None, pid: int | None = None) -> str:
    """The most that is known of a process."""
    if rank is not None:
        return f"rank {rank}"
    if local_rank is not None:
        return f"local rank {local_rank}{f' on {host}' if host else ''} (which global rank is not said)"
    if pid is not None:
        return f"process {pid} (which rank is not said)"
    return "a rank that is not named"
