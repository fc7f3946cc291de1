"""Which nodes to leave out, and how to say so to Slurm and Kubernetes. Pure."""

from collections import Counter
from collections.abc import Iterable

from rankpatrol.core.records import Record
from rankpatrol.lemons.records import DeviceCount, Memory, NodeIncident, NodeStory

# These are of the machine, whatever the program was.
HARDWARE_CAUSES = frozenset(
    {
        *("gpu_lost", "gpu_ecc", "gpu_slow", "gpu_kernel_livelock", "p2p_broken"),
        *("ib_link_flap", "link_down", "link_degraded", "node_missing", "orphan_unkillable"),
    }
)
# These may be of the machine or of the program: they count when they come again in another job.
PERHAPS_CAUSES = frozenset(
    {
        *("sigsegv", "sigabrt", "sigkill", "below_python", "filesystem_stall", "straggler"),
        *("host_oom_kill", "host_contention", "shm_too_small", "launcher_lost_worker"),
    }
)
_DAY_S = 86400.0


class Weights(Record, frozen=True, kw_only=True):
    """When a node is a lemon. Time heals: what is older than the window is not counted."""

    window_s: float = 30 * _DAY_S
    hardware_least: int = 2
    # The same node in two jobs' trouble, and not by one job's own fault alone.
    perhaps_least: int = 3
    perhaps_jobs_least: int = 2
    # As many incidents a job as the other nodes have, times this: a job that fails everywhere makes no lemon.
    stands_out_factor: float = 3.0


def stories(memory: Memory, now_unix_s: float, weights: Weights) -> tuple[NodeStory, ...]:
    """Every node with an incident in the window, the worst first."""
    incidents = [each for each in memory.incidents if 0 <= now_unix_s - each.at_unix_s <= weights.window_s]
    jobs = _jobs_of(memory, incidents, now_unix_s - weights.window_s)
    by_node: dict[str, list[NodeIncident]] = {}
    for incident in incidents:
        by_node.setdefault(incident.node, []).append(incident)
    counted = {node: len(_counting(mine)) for node, mine in by_node.items()}
    found = [_story(node, mine, jobs, counted, weights) for node, mine in by_node.items()]
    return tuple(sorted(found, key=lambda story: (story.lemon is None, -story.hardware, -story.perhaps, -story.incidents, story.node)))


def exclude_option(nodes: Iterable[str]) -> str:
    """For `sbatch` and `srun`."""
    return f"--exclude={','.join(sorted(nodes))}"


def node_affinity(nodes: Iterable[str]) -> dict[str, object]:
    """For a pod's `spec.affinity`."""
    wanted = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted(nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wanted]}}}


def _jobs_of(memory: Memory, incidents: Iterable[NodeIncident], since_unix_s: float) -> dict[str, set[str]]:
    jobs: dict[str, set[str]] = {}
    for use in memory.uses:
        if use.at_unix_s >= since_unix_s:
            jobs.setdefault(use.node, set()).add(use.job)
    for incident in incidents:
        jobs.setdefault(incident.node, set()).add(incident.job)
    return jobs


def _counting(incidents: Iterable[NodeIncident]) -> list[NodeIncident]:
    return [each for each in incidents if each.cause in HARDWARE_CAUSES or each.cause in PERHAPS_CAUSES]


def _story(node: str, mine: list[NodeIncident], jobs: dict[str, set[str]], counted: dict[str, int], weights: Weights) -> NodeStory:
    hardware = [each for each in mine if each.cause in HARDWARE_CAUSES]
    perhaps = [each for each in mine if each.cause in PERHAPS_CAUSES]
    lemon, weighed = _weigh(hardware, perhaps, len(jobs[node]), _usual(node, jobs, counted), weights)
    return NodeStory(
        node=node,
        jobs=len(jobs[node]),
        incidents=len(mine),
        hardware=len(hardware),
        perhaps=len(perhaps),
        causes=dict(Counter(each.cause for each in mine).most_common()),
        devices=tuple(DeviceCount(device=name, incidents=number) for name, number in Counter(each.device for each in mine).most_common()),
        last_unix_s=max(each.at_unix_s for each in mine),
        lemon=lemon,
        weighed=weighed,
    )


def _usual(node: str, jobs: dict[str, set[str]], counted: dict[str, int]) -> float | None:
    """Incidents a job of all other nodes, or None where there are none to compare with."""
    others = {other: len(used) for other, used in jobs.items() if other != node}
    return sum(counted.get(other, 0) for other in others) / sum(others.values()) if others else None


def _weigh(
    hardware: list[NodeIncident], perhaps: list[NodeIncident], jobs: int, usual: float | None, weights: Weights
) -> tuple[str | None, str]:
    """Why it is a lemon, or why it is none."""
    troubled = {each.job for each in perhaps}
    if len(hardware) >= weights.hardware_least:
        why = f"{len(hardware)} incidents of its hardware"
    elif len(perhaps) >= weights.perhaps_least and len(troubled) >= weights.perhaps_jobs_least:
        why = f"{len(perhaps)} incidents in {len(troubled)} jobs that may be of the machine"
    elif hardware or perhaps:
        return None, "too few incidents that may be of the machine"
    else:
        return None, "its incidents were of the program or its data, not of the machine"
    if usual is None:
        return None, f"{why}, but no other node is known to compare it with"
    own = (len(hardware) + len(perhaps)) / jobs
    if own < weights.stands_out_factor * usual:
        return None, f"{why}, but other nodes have about as many ({usual:.2f} a job, here {own:.2f})"
    return f"{why}, {own:.2f} a job; other nodes {usual:.2f}", ""
