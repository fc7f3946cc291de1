"""Readings as metrics of prometheus-client: a collector that reads the state when it is asked, and counts nothing itself."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from rankpatrol.metrics import table
from rankpatrol.metrics.records import Reading
from rankpatrol.metrics.table import METRICS, PREFIX, Point

_COMMON = ("job_id", "node")
Source = Callable[[], Iterable[Reading]]


class ReadingsCollector(Collector):
    """Serves what `source` gives: one reading an agent, many a hub. Never waits."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        """The families without samples, so that registering asks for no reading."""
        return iter([_family(row) for row in METRICS])

    def collect(self) -> Iterator[Metric]:
        """All families that have a sample."""
        readings = tuple(self._source())
        for row in METRICS:
            family = _family(row)
            for reading in readings:
                _fill(family, row, reading)
            if family.samples:
                yield family


def registry_of(source: Source) -> CollectorRegistry:
    """A registry of this one collector: nothing of Python's own process goes into it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingsCollector(source))
    return registry


def exposition(readings: Iterable[Reading]) -> bytes:
    """The readings in Prometheus's text format."""
    return generate_latest(registry_of(lambda: readings))


def _family(row: table.Metric) -> Metric:
    names = (*_COMMON, *row.labels)
    name = PREFIX + row.name
    if row.kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), row.help, labels=names)
    if row.kind == "summary":
        return SummaryMetricFamily(name, row.help, labels=names)
    return GaugeMetricFamily(name, row.help, labels=names)


def _fill(family: Metric, row: table.Metric, reading: Reading) -> None:
    suffix = {"counter": "_total", "summary": "_count"}.get(row.kind, "")
    for ending, points in ((suffix, row.points), ("_sum", row.sums)):
        for point in () if points is None else points(reading):
            _add(family, family.name + ending, (row.labels, point), reading)


def _add(family: Metric, name: str, of: tuple[tuple[str, ...], Point], reading: Reading) -> None:
    names, point = of
    agent = reading.now.agent
    node = point.node if point.node is not None else agent.node if agent is not None else ""
    values = (reading.now.job, node, *point.labels)
    try:
        family.add_sample(name, dict(zip((*_COMMON, *names), map(_shown, values), strict=True)), float(point.value))
    except OverflowError:
        return  # a log named a number that no float holds


def _shown(word: str) -> str:
    """Half characters, as names of files may have them, cannot be sent."""
    return word.encode(errors="replace").decode()
