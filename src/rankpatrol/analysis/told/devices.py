"""What the kernel, a driver or a GPU states by itself: killed for memory, lost, uncorrectable, illegal access, out of GPU memory."""

import re

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.pace import reported_straggler
from rankpatrol.analysis.told.words import certainty, named, quote, ranks_words, who
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind

# By Xid, as NVIDIA's catalog tells them apart; what is not here says nothing about whose fault it is.
_BY_XID = {
    13: "illegal_access", 31: "illegal_access", 32: "illegal_access", 43: "illegal_access",
    48: "gpu_ecc", 63: "gpu_ecc", 64: "gpu_ecc", 92: "gpu_ecc", 94: "gpu_ecc", 95: "gpu_ecc", 140: "gpu_ecc",
    46: "gpu_lost", 61: "gpu_lost", 62: "gpu_lost", 79: "gpu_lost", 109: "gpu_lost", 119: "gpu_lost", 120: "gpu_lost", 151: "gpu_lost",
    154: "gpu_lost", 155: "gpu_lost", 158: "gpu_lost",
    74: "nvlink", 137: "nvlink", 144: "nvlink", 145: "nvlink", 149: "nvlink", 150: "nvlink",
}  # fmt: skip


class _Fault(Record, frozen=True):
    """How one sort of device fault is put: the taxonomy's cause, a phrase, what to do, and whether the node is to blame."""

    cause: str
    phrase: str
    suggested: tuple[str, ...]


# Strongest first: a lost GPU explains the CUDA errors of its rank, not the other way round.
_FAULTS = {
    "gpu_lost": _Fault(
        "gpu_lost", "lost its GPU", ("Drain the node, look at its kernel log for Xid and PCIe errors, and reset or replace the GPU",)
    ),
    "gpu_ecc": _Fault(
        "gpu_ecc",
        "met an uncorrectable memory error of its GPU",
        ("Drain the node and reset the GPU; where rows cannot be remapped, replace it",),
    ),
    "nvlink": _Fault("link_down", "met an NVLink error", ("Drain the node and run the vendor's NVLink diagnostics",)),
    "illegal_access": _Fault(
        "cuda_illegal_access",
        "read or wrote memory that is not its own on the GPU",
        (
            "Run that rank with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer) to find the kernel",
            "Do not drain the node unless the same GPU fails with other jobs",
        ),
    ),
    "device_assert": _Fault(
        "cuda_illegal_access",
        "failed an assertion on the GPU (an index or a label out of range, mostly)",
        ("Run that rank with CUDA_LAUNCH_BLOCKING=1 to find the line; check labels and indices",),
    ),
    "launch_failure": _Fault(
        "cuda_illegal_access",
        "met a failed kernel launch",
        ("Run that rank with compute-sanitizer", "Look into the kernel log for an Xid of that GPU"),
    ),
}
_EXABYTES = re.compile(r"Tried to allocate (?:more than )?(?:\d+(?:\.\d+)? ?(?:EB|EiB|PB|PiB)|1EB)", re.IGNORECASE)


def killed_for_memory(story: Story) -> Diagnosis | None:
    """The kernel's OOM killer: a loader process, a rank, or nobody of ours that is known."""
    kills = story.told(Kind.KILLED_BY_KERNEL)
    if not kills or story.says(Kind.LOADER_DIED):
        return None
    pids = {int(told.first.values["pid"]): told.first.teller.host for told in kills if "pid" in told.first.values}
    pid = next((pid for pid, host in sorted(pids.items()) if story.rank_of_pid(pid, host) is not None), None)
    rank = story.rank_of_pid(pid, pids[pid]) if pid is not None else None
    # A pid of a table may be another host's process, unless the kernel's line says its host.
    guessed = pid is not None and pids[pid] is None and story.places.of_pid(pid, None) != frozenset()
    by_nine = [end for end in story.ends if end.signal == 9]
    if rank is None and len({end.rank for end in by_nine}) == 1 and (not pids or by_nine[0].pid in {*pids, None}):
        rank = by_nine[0].rank
    dead = [end.fact for end in by_nine][:1]
    return Diagnosis(
        verdict="crash",
        cause="host_oom_kill",
        culprit_ranks=named(rank),
        certainty=Certainty.SUSPECTED if guessed else Certainty.PROVED if rank is not None else certainty(kills, by_nine),
        sentence=f"the kernel killed {who(rank, pid=min(pids, default=None))} for want of host memory",
        reasons_for=(*(quote(told.first) for told in kills[:2]), *(quote(fact) for fact in dead)),
        reasons_against=("the kernel chooses by size: the memory is the whole job's, and the killed rank need not be the one that grew",),
        suggested=("Give the job more host memory, load weights once a node (mmap), or start fewer loader processes",),
    )


def device_fault(story: Story) -> Diagnosis | None:
    """A GPU that is lost, broken, or was used wrongly by the application."""
    found = _faults(story)
    for sort, fault in _FAULTS.items():
        if facts := found.get(sort):
            if sort == "launch_failure" and len(found) == 1 and not story.told(Kind.SYMPTOM, "aer"):
                return _say(story, sort, fault, facts, Certainty.SUSPECTED)
            return _say(story, sort, fault, facts, None)
    return _clocks(story)


def _faults(story: Story) -> dict[str, list[Fact]]:
    found: dict[str, list[Fact]] = {}
    for told in story.told(Kind.SYMPTOM):
        sort = told.first.word
        if sort == "xid":
            sort = _BY_XID.get(int(told.first.values["xid"]), "")
        if sort == "no_device" and (story.pace is not None or story.told(Kind.SYMPTOM, "aer")):
            sort = "gpu_lost"
        if sort in _FAULTS:
            found.setdefault(sort, []).append(told.first)
    if "gpu_lost" in found:
        found["gpu_lost"] += found.get("launch_failure", [])
    return found


def _say(story: Story, sort: str, fault: _Fault, facts: list[Fact], sure: Certainty | None) -> Diagnosis:
    ranks, why = _whose(story, facts)
    one = ranks[0] if len(ranks) == 1 else None
    host = next((fact.teller.host for fact in facts if fact.teller.host), None)
    several = f"{ranks_words(ranks)} each" if len(ranks) > 1 else None
    asynchronous = (
        ("the Python line of a CUDA error is where it was noticed, not where it happened",)
        if story.exceptions and sort != "gpu_lost"
        else ()
    )
    waiting = any(wait.rank not in ranks for wait in story.waits)
    return Diagnosis(
        verdict=story.verdict(),
        cause=fault.cause,
        culprit_ranks=named(one),
        victim_ranks=tuple(sorted({wait.rank for wait in story.waits if wait.rank is not None and wait.rank != one})),
        certainty=sure or (Certainty.PROVED if one is not None and len({fact.word for fact in facts}) > 1 else Certainty.SUPPORTED),
        sentence=f"{several or who(one, host=host)} {fault.phrase}{'; the others wait for it' if waiting and one is not None else ''}",
        reasons_for=(*(quote(fact) for fact in facts[:3]), *why),
        reasons_against=(*asynchronous, *(("which of them was first is not said",) if len(ranks) > 1 else ())),
        suggested=fault.suggested,
    )


def _whose(story: Story, facts: list[Fact]) -> tuple[list[int], tuple[str, ...]]:
    """The ranks that the lines are of: the writer, the owner of the pid, or the owner of the PCI address."""
    ranks: set[int] = set()
    why: list[str] = []
    for fact in facts:
        rank = story.rank_of(fact.teller, fact)
        pid = fact.number("pid")
        if rank is None and pid is not None:
            rank = story.rank_of_pid(int(pid))
        if rank is None and (pci := fact.values.get("pci")):
            rank = _rank_at(story, pci)
            if rank is not None:
                why.append(f"the GPU at {pci.rstrip(':')} is rank {rank}'s")
        if rank is not None:
            ranks.add(rank)
    if not ranks:
        ranks |= {failure.rank for failure in story.failures if failure.rank is not None and "CUDA" in failure.message}
    return sorted(ranks), tuple(why)


def _rank_at(story: Story, pci: str) -> int | None:
    wanted = _bus(pci)
    found = {told.first.values["rank"] for told in story.told(Kind.OBSERVED, "device_map") if _bus(told.first.values["pci"]) == wanted}
    return int(found.pop()) if len(found) == 1 else None


def _bus(pci: str) -> str:
    """Bus and device of a PCI address: domains are written with four or eight digits, functions are left out by Xid lines."""
    parts = pci.upper().rstrip(":").split(":")
    return ":".join(parts[-2:]).partition(".")[0]


def _clocks(story: Story) -> Diagnosis | None:
    slow = story.told(Kind.SYMPTOM, "clock_low")
    if not slow or story.waits or story.failures:
        return None
    found = [_named_in(told.first) if "rank" in told.first.values else story.rank_of(told.first.teller, told.first) for told in slow]
    ranks = sorted({rank for rank in found if rank is not None})
    reported = reported_straggler(story)
    if not ranks and reported is not None:
        ranks = [reported.rank]
    one = ranks[0] if len(ranks) == 1 else None
    return Diagnosis(
        verdict="slow",
        cause="gpu_slow",
        culprit_ranks=named(one),
        certainty=Certainty.SUPPORTED,
        sentence=f"the GPU of {who(one)} runs below its clocks, and all wait for the slowest in each step",
        reasons_for=tuple(quote(told.first) for told in slow[:3]),
        suggested=("Look at temperature, power cap and cooling of that GPU; compare its clocks with its neighbours'",),
    )


def _named_in(fact: Fact) -> int | None:
    rank = fact.number("rank")
    return int(rank) if rank is not None else None


def gpu_memory(story: Story) -> Diagnosis | None:
    """CUDA out of memory, unless the size is impossible or it came after an abort: then it is what the abort left behind."""
    own = [
        told.first
        for told in story.told(Kind.SYMPTOM, "cuda_oom")
        if not _EXABYTES.search(told.first.text)
        and not story.outlived(told.last)
        and not any(story.comes_before(wait.fact, told.first) for wait in story.waits)
    ]
    if not own:
        return None
    ranks = sorted({rank for fact in own if (rank := story.rank_of(fact.teller, fact)) is not None})
    one = ranks[0] if len(ranks) == 1 else None
    named_absent = {int(rank) for told in story.told(Kind.BARRIER_ABSENT) for rank in re.findall(r"\d+", told.first.values["ranks"])}
    agreed = one is not None and one in named_absent
    return Diagnosis(
        verdict=story.verdict(),
        cause="gpu_oom",
        culprit_ranks=named(one),
        victim_ranks=tuple(sorted(story.ranks - {one})) if one is not None and story.others_suffer(one) else (),
        certainty=Certainty.PROVED if agreed else Certainty.SUSPECTED if story.only_by_its_node(own[0].teller) else Certainty.SUPPORTED,
        sentence=f"{ranks_words(ranks) if ranks else 'a rank that is not named'} ran out of GPU memory"
        + ("; the others' errors are effects of that" if story.others_suffer(one) else ""),
        reasons_for=(*(quote(fact) for fact in own[:2]), *((f"a monitored barrier says that rank {one} did not come",) if agreed else ())),
        reasons_against=(("several ranks say so; which was first is not said",) if len(ranks) > 1 else ()),
        suggested=("Look for another process on that GPU, then at the batch size and the longest sample",),
    )
