"""A job on several nodes: a node that has fallen silent, a link that carries nothing, and on which node a named rank is."""

import re
import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import ProcessSample, RankSample, Snapshot, SocketBytes

# Linux waits 0.2 s before the first repetition and twice as long before each next one (tcp_retries2 of tcp(7)): 3 s at the fourth.
_RETRANSMITS = 4


class Unheard(Record, frozen=True, kw_only=True):
    """One rank's connection on which nothing that it sends is acknowledged."""

    rank: int
    local: str
    remote: str


def placed(diagnosis: Diagnosis, ranks: Sequence[RankSample]) -> Diagnosis:
    """The same, its sentence saying on which nodes the named ranks are, where the job has several."""
    nodes = {sample.rank: sample.node for sample in ranks}
    named = diagnosis.culprit_ranks or diagnosis.awaited_ranks or ()
    if len(set(nodes.values())) < 2 or len(named) > 2:
        return diagnosis
    sentence = diagnosis.sentence
    for rank in named:
        if rank in nodes:
            before, word, after = (
                re.split(rf"(\brank {rank}\b)", sentence, maxsplit=1) if f"rank {rank}" in sentence else (sentence, "", "")
            )
            sentence = f"{before}{word} ({nodes[rank]}){after}" if word else sentence
    return msgspec.structs.replace(diagnosis, sentence=sentence)


def diagnose_silence(scene: Scene) -> Diagnosis | None:
    """A node of which nothing is heard, while all ranks elsewhere wait for their peers. None where somebody there is awaited."""
    silent = scene.now.silent_nodes
    lost = tuple(sample.rank for sample in scene.now.ranks if sample.node in silent)
    seen = [sample for sample in scene.now.ranks if sample.node not in silent]
    waiting = set(scene.victims)
    if not lost or not seen or any(sample.rank not in waiting for sample in seen):
        return None
    reporting = {sample.node for sample in seen}
    unheard = _unheard(seen, elsewhere=True)
    names, since_s = _say_names(silent), max(silent.values())
    victims = tuple(sample.rank for sample in seen)
    # Whoever hears less than half of the nodes may be the one that is cut off.
    sure = len(silent) < len(reporting)
    doubt = (
        ()
        if sure
        else (f"only {len(reporting)} of {len(reporting) + len(silent)} nodes are heard: this one may be the one that is cut off",)
    )
    cut = f"nothing that {say_ranks(tuple({each.rank for each in unheard}))} send there is acknowledged" if unheard else ""
    alive = "whatever the others have sent there is acknowledged: the machine answers, its processes do not"
    return Diagnosis(
        verdict="hang",
        cause="link_down" if unheard else "node_missing",
        culprit_ranks=lost,
        victim_ranks=victims,
        certainty=Certainty.SUPPORTED if sure else Certainty.SUSPECTED,
        sentence=(
            f"{names} {'has' if len(silent) == 1 else 'have'} told nothing for {say_duration(since_s)}"
            f"{', and ' + cut if cut else ''}; {say_ranks(victims)} wait for {say_ranks(lost)} there"
        ),
        reasons_for=(
            f"all {len(victims)} ranks on {_say_names(dict.fromkeys(sorted(reporting)))} wait for a peer",
            *(f"{each.local} to {each.remote} (rank {each.rank}) repeats what it sends, unanswered" for each in unheard[:4]),
            *(() if unheard else (alive,)),
        ),
        reasons_against=doubt,
        suggested=(f"Look at {names}: is it up, does it answer a ping, what does its console say", "Leave it out of the next attempt"),
    )


def diagnose_links(scene: Scene) -> Diagnosis | None:
    """All nodes are heard, all ranks wait, and between some of them nothing that is sent arrives."""
    unheard = _unheard(list(scene.now.ranks), elsewhere=False)
    nodes = _nodes_of_addresses(scene)
    pairs = sorted(
        {tuple(sorted((node, nodes[host]))) for each in unheard if (node := _node(scene, each.rank)) != nodes[(host := _host(each.remote))]}
    )
    if not pairs:
        return None
    common = set.intersection(*(set(pair) for pair in pairs))
    # One node in all broken pairs is the likelier place than all of its peers; a single pair has two ends, and neither is named.
    blamed = common.pop() if len(common) == 1 and len(pairs) > 1 else None
    culprits = tuple(sample.rank for sample in scene.now.ranks if sample.node == blamed) if blamed else None
    between = (
        f"{blamed} and {_say_names(dict.fromkeys(other for pair in pairs for other in pair if other != blamed))}"
        if blamed
        else " and ".join(pairs[0])
    )
    return Diagnosis(
        verdict="hang",
        cause="link_down",
        culprit_ranks=culprits,
        victim_ranks=tuple(rank for rank in scene.victims if rank not in set(culprits or ())),
        certainty=Certainty.SUPPORTED,
        sentence=f"nothing that is sent between {between} arrives, and all {len(scene.samples)} ranks wait for each other",
        reasons_for=tuple(f"{each.local} to {each.remote} (rank {each.rank}) repeats what it sends, unanswered" for each in unheard[:6]),
        suggested=(f"Test the link between {between}: cable, switch port, firewall rules",),
    )


def degraded_link(slow: Diagnosis, looks: tuple[Snapshot, ...]) -> Diagnosis:
    """A slow job of which nobody is to blame, while in most moments all that is on its way goes to or from one node: its link is.

    A rank that is late sends nothing meanwhile, and neither do its peers. Behind a slow link there is always something that was sent and
    is not yet acknowledged: what its node sends, and what it is sent, since its acknowledgements take the same road.
    """
    nodes = {sample.node for sample in looks[-1].ranks} if looks else set()
    if slow.culprit_ranks or len(looks) < _LOOKS or len(nodes) < 3:
        return slow
    busy = [pairs for look in looks if (pairs := _pairs_that_wait(look))]
    in_all = Counter(node for pairs in busy for node in set.intersection(*(set(pair) for pair in pairs)))
    (worst, times), (_, second) = (*in_all.most_common(2), ("", 0), ("", 0))[:2]
    if times < _MOST * len(looks) or times - second < _LEAD * len(looks):
        return slow
    return msgspec.structs.replace(
        slow,
        cause="link_degraded",
        certainty=Certainty.SUPPORTED,
        sentence=f"{slow.sentence}; what is sent to and from {worst} is long on its way, while all wait for it",
        reasons_for=(
            *slow.reasons_for,
            f"in {times} of {len(looks)} looks something was on its way to or from {worst}, and nowhere else",
            *_trips(looks, worst),
        ),
        suggested=(f"Test the link of {worst}: cable, switch port, speed and errors of its interface (ethtool, ip -s link)",),
    )


# Of so many looks, most for the one, and so many more than for any other.
_LOOKS, _MOST, _LEAD = 6, 0.6, 0.25


def _pairs_that_wait(look: Snapshot) -> set[tuple[str, str]]:
    """Pairs of nodes between which something is on its way."""
    at = {_host(each.local): sample.node for sample in look.ranks for each in _sockets(sample)}
    found = (
        (sample.node, there)
        for sample in look.ranks
        for each in _sockets(sample)
        if each.unacked_segments and (there := at.get(_host(each.remote), sample.node)) != sample.node
    )
    return {(min(pair), max(pair)) for pair in found}


def _trips(looks: tuple[Snapshot, ...], node: str) -> tuple[str, ...]:
    trips = [
        each.round_trip_s
        for look in looks
        for sample in look.ranks
        if sample.node == node
        for each in _sockets(sample)
        if each.unacked_segments and each.round_trip_s
    ]
    return (f"there and back it takes {statistics.median(trips) * 1e3:.1f} ms in the median",) if trips else ()


def _unheard(samples: list[RankSample], *, elsewhere: bool) -> list[Unheard]:
    """Connections that repeat themselves unanswered; `elsewhere`: to hosts that none of these ranks is on, else to those of theirs."""
    found = [(sample, each) for sample in samples for each in _sockets(sample)]
    ours = {_host(each.local) for _, each in found}
    return [
        Unheard(rank=sample.rank, local=each.local, remote=each.remote)
        for sample, each in found
        if each.unacked_segments and each.retransmits >= _RETRANSMITS and (_host(each.remote) not in ours) is elsewhere
    ]


def _sockets(sample: RankSample) -> tuple[SocketBytes, ...]:
    process = sample.process
    return process.sockets if isinstance(process, ProcessSample) and not isinstance(process.sockets, Missing) else ()


def _nodes_of_addresses(scene: Scene) -> dict[str, str]:
    """Which node an address is on, by the connections of its own ranks."""
    return {_host(each.local): sample.node for sample in scene.now.ranks for each in _sockets(sample)}


def _node(scene: Scene, rank: int) -> str:
    return scene.samples[rank].node


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _say_names(names: dict[str, float] | dict[str, None]) -> str:
    """`n2`, `n2 and n3`, `n2, n3 and n4`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
