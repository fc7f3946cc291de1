"""Where the ranks are, as tables of the start tell: the process, the pod, the node of each."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import TypeVar

from rankpatrol.analysis.story_ends import ranks_in
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_ledger import Ledger

_Key = TypeVar("_Key", bound=Hashable)


class Places(Record, frozen=True):
    """Ranks by process, by pod or actor, and by node. What two lines tell differently is not told."""

    processes: Mapping[tuple[int, str | None], frozenset[int]]
    components: Mapping[str, frozenset[int]]
    nodes: Mapping[str, frozenset[int]]

    def of_pid(self, pid: int, host: str | None) -> frozenset[int]:
        """The ranks that may be this process: on its host where that is known, else on any."""
        found = [ranks for (its, where), ranks in self.processes.items() if its == pid and (host is None or where in {None, host})]
        return frozenset().union(*found)

    def of_component(self, component: str | None) -> int | None:
        """The one rank of a pod or an actor."""
        ranks = self.components.get(component or "", frozenset())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def on_node(self, host: str | None, local_rank: int) -> int | None:
        """The global rank of a local one: launchers count on from node to node."""
        ranks = sorted(self.nodes.get(host or "", frozenset()))
        whole = bool(ranks) and ranks == list(range(ranks[0], ranks[-1] + 1))
        return ranks[local_rank] if whole and local_rank < len(ranks) else None


def places_of(ledger: Ledger) -> Places:
    """All that lines of the start and tables tell of where ranks are."""
    processes: dict[tuple[int, str | None], set[int]] = defaultdict(set)
    components: dict[str, set[int]] = defaultdict(set)
    nodes: dict[str, set[int]] = defaultdict(set)
    for told in ledger.told(Kind.PLACED):
        values = told.last.values
        match told.last.word:
            case "process":
                host = values.get("host") or values.get("host2") or told.last.teller.host
                rank = told.last.number("rank") if "rank" in values else told.last.teller.rank
                if rank is not None:
                    processes[int(values["pid"]), host].add(int(rank))
            case "component":
                components[values["component"]].add(int(values["rank"]))
            case _:
                nodes[values["host"]].update(ranks_in(values["ranks"]))
    return Places(_frozen(processes), _frozen(components), _frozen(nodes))


def _frozen(found: Mapping[_Key, set[int]]) -> dict[_Key, frozenset[int]]:
    return {key: frozenset(ranks) for key, ranks in found.items()}
