"""Whose log a file is, by its name: one row a layout."""

import re

from rankpatrol.core.testimony import Teller

# `rank` is global, `local` is the rank on its node, `host` a node's name.
LAYOUTS = (
    (
        "rankpatrol's job directory, and own names: rank3.log, rank_3.txt, log-rank-3.out",
        r"(?:^|[^a-zA-Z])(?:global[_-]?)?rank[_.=-]?(?P<rank>\d{1,6})(?!\d)",
    ),
    ("torchrun --log-dir: attempt_0/3/stderr.log, by LOCAL rank", r"attempt_\d+/(?P<local>\d{1,3})/(?:stdout|stderr)\.log$"),
    ("torchrun before 2.0: <run>/attempt_0/3/stderr.log", r"/(?P<local>\d{1,3})/(?:stdout|stderr|error)\.(?:log|json|txt)$"),
    ("mpirun --output-filename: 1/rank.3/stdout", r"rank\.(?P<rank>\d{1,6})/(?:stdout|stderr)$"),
)
_LAYOUTS = tuple(re.compile(regex) for _, regex in LAYOUTS)


def teller_of(path: str) -> Teller:
    """The writer that a path names, as far as it does."""
    for regex in _LAYOUTS:
        if seen := regex.search(path):
            found = seen.groupdict()
            return Teller(rank=_int(found.get("rank")), local_rank=_int(found.get("local")))
    return Teller()


def _int(text: str | None) -> int | None:
    return int(text) if text is not None else None
