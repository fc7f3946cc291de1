"""Whether ranks of this machine can be bound: its nodes, and where its GPUs are."""

from collections.abc import Mapping

from rankpatrol.affinity import binder
from rankpatrol.affinity.auditing import place_on
from rankpatrol.core.records import Record
from rankpatrol.doctor.rows import Level, Row


class Ground(Record, frozen=True):
    """How many NUMA nodes have CPUs, how many GPUs are there, and why the place of some is not known."""

    nodes: int
    gpus: int
    unknown: tuple[str, ...] = ()


def look(environment: Mapping[str, str], root: str = "/") -> Ground:
    """The topology, as a rank's shim would read it."""
    seen = binder.survey([environment], root)
    places = [place_on(seen, gpu) for gpu in seen.gpus]
    return Ground(len(seen.machine.with_cpus()), len(places), tuple(place.why for place in places if place.node is None))


def judge_binding(seen: Ground) -> tuple[Row, ...]:
    """What is not certain is not bound: the training runs, and may run slower."""
    if seen.nodes <= 1:
        return (Row("binding", Level.OK, "one NUMA node has all the CPUs: there is nothing to bind"),)
    if not seen.gpus:
        return (Row("binding", Level.OK, f"{seen.nodes} NUMA nodes and no GPU: ranks are not bound"),)
    if seen.unknown:
        said = f"{len(seen.unknown)} of {seen.gpus} GPUs have no known place, and their ranks are not bound: {seen.unknown[0]}"
        return (Row("binding", Level.HINT, said, "rankpatrol affinity show; or name it: rankpatrol bind --gpu PCI -- CMD"),)
    return (
        Row("binding", Level.OK, f"each rank is bound to the node of its GPU ({seen.nodes} nodes, {seen.gpus} GPUs); --no-bind declines"),
    )
