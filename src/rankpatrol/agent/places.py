"""A registered rank of which no more is seen yet."""

from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import ProcessSample, RankSample
from rankpatrol.launch.rundir import RankPlace


def sample_of(place: RankPlace, process: ProcessSample | Missing) -> RankSample:
    """The rank as its shim registered it, with what is known of its process."""
    return RankSample(
        rank=place.rank, local_rank=place.local_rank, node=place.node, shim_pid=place.shim_pid, pid=place.pid, process=process
    )
