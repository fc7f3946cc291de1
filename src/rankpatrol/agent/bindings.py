"""What the ranks were bound to, as their shims wrote it, and whether it holds: told, sealed, and said of a slow job."""

from collections.abc import Iterable, Mapping
from typing import Any

from rankpatrol.affinity import binder
from rankpatrol.affinity.audit import AuditVerdict, RankAudit
from rankpatrol.affinity.auditing import audit_of
from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.plan import BIND, LEFT
from rankpatrol.affinity.running import running_process
from rankpatrol.core.records import Missing
from rankpatrol.launch.rundir import Binding


def say_binding(binding: Binding) -> str:
    """One rank's binding in a few words."""
    if binding.decision == BIND:
        memory = "" if binding.memory_node is None else f", memory of node {binding.memory_node}"
        return f"bound to CPUs {format_cpus(binding.cpus)} of node {binding.node}{memory}"
    return f"{'left as it is' if binding.decision == LEFT else 'not bound'}: {binding.why}"


def as_event(binding: Binding) -> dict[str, Any]:
    """The same for events.jsonl, the CPUs as the kernel writes them."""
    return {
        "decision": binding.decision,
        "why": binding.why,
        "gpu": binding.gpu,
        "node": binding.node,
        "cpus": format_cpus(binding.cpus) if binding.cpus else None,
        "memory_node": binding.memory_node,
        "notes": binding.notes,
    }


def grouped(bindings: Mapping[int, Binding]) -> list[dict[str, Any]]:
    """Ranks of the same fate are one row."""
    alike: dict[str, list[int]] = {}
    for rank, binding in sorted(bindings.items()):
        alike.setdefault(say_binding(binding), []).append(rank)
    return [{"ranks": format_cpus(ranks), "words": words} for words, ranks in alike.items()]


def audits(pids: Mapping[int, int], root: str = "/") -> dict[int, RankAudit | Missing]:
    """Each rank (by its pid) as it stands now, by its threads alone.

    Its memory is left alone: reading numa_maps holds the lock that the rank's own allocations need, for as long as the memory is large.
    """
    running = {rank: running_process(pid, memory=False) for rank, pid in pids.items()}
    ground = binder.survey([each.environment for each in running.values() if not isinstance(each, Missing)], root)
    return {rank: each if isinstance(each, Missing) else audit_of(each, ground) for rank, each in running.items()}


def misbound(pids: Mapping[int, int], root: str = "/") -> tuple[str, ...]:
    """A sentence for each rank whose threads cannot run where its GPU is; none where nothing is wrong, or nothing known."""
    try:
        seen = audits(pids, root)
    except (OSError, ValueError):
        return ()  # a witness that fails says nothing
    return tuple(_findings(seen.values()))


def _findings(seen: Iterable[RankAudit | Missing]) -> Iterable[str]:
    for audit in seen:
        if not isinstance(audit, Missing) and audit.verdict is AuditVerdict.MISBOUND:
            yield from audit.findings


def for_bundle(bindings: Mapping[int, Binding], pids: Mapping[int, int]) -> dict[str, Any]:
    """host/bindings.json of a bundle: what was done before each rank's start, and how it stands."""
    now = audits(pids)
    return {
        str(rank): {"at_start": as_event(bindings[rank]) if rank in bindings else None, "now": now.get(rank)}
        for rank in sorted({*bindings, *pids})
    }
