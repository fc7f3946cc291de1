"""The answer to a topology: whether a rank may run where its GPU is."""

import re

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing, Record
from rankpatrol.formats.cpu_list import parse_cpus, parse_mask, say_cpus
from rankpatrol.formats.topo_matrix import GpuRow, parse_topo

_SETS = r"(\[[^\]]*\]|\{[^}]*\}|0x[0-9a-fA-F]+|\d[\d,\- ]*|none|empty|\(empty\))"
_LOCAL = re.compile(
    r"(?:nvmlDeviceGetCpuAffinity\w*|local_cpulist|CpuAffinity)\W*?(?:\((\w*)\w*,?[^)]*\))?[^:=\n]*[:=]\s*"
    rf"{_SETS}?\s*$",
    re.MULTILINE,
)
# Bits, not numbers of CPUs: sysfs has both, and the list has another name (Documentation/ABI/testing/sysfs-bus-pci).
_LOCAL_MASK = re.compile(r"\blocal_cpus\b[^:=\n]*[:=]\s*([0-9a-fA-F,]+)\s*$", re.MULTILINE)
_ALLOWED = re.compile(
    r"(?:Cpus_allowed_list|cpuset\.cpus(?:\.effective)?|cpuset|--cpuset-cpus|sched_getaffinity\([^)]*\)|physcpubind|SLURM_CPU_BIND_LIST|"
    rf"allowed cpus?)[:= ]+\s*{_SETS}\s*(?:#.*)?$",
    re.MULTILINE | re.IGNORECASE,
)
_BOUND = re.compile(rf"(?:pid (\d+)'s (?:current|new) affinity list): {_SETS}\s*(?:[#(].*)?$", re.MULTILINE)
_ASKED = re.compile(
    r"(?:sched_setaffinity\(\s*\w+\s*,\s*(\{[^}]*\}|\[[^\]]*\]|range\(\d+, ?\d+\))|taskset (?:-\w*c\w*|--cpu-list)[ =]?([\d,\-]+)|"
    r"--physcpubind[= ]([\d,\-]+)|"
    # Whole words alone: what ends in _mask or _allowed are bits, and num_cpus is a number of them.
    r"(?<![\w-])(?:bind(?:s|ing)?|pin(?:s|ned|ning)?|(?P<many>cores|cpus)|(?:cores?|cpus?)_?(?:ids?|list|set)|core|cpu|"
    r"(?:cpu_)?affinity(?:_list)?)(?: (?:to|for|of|rank \d+|local_rank \d+|gpu \d+))*\s*(?:->|:|=|to)\s*"
    r"(?:cores? |cpus? )?([\d][\d,\-]*)\s*$)",
    re.MULTILINE | re.IGNORECASE,
)
_REFUSED = re.compile(
    r"sched_setaffinity.*(?:Invalid argument|EINVAL)|(?:Invalid argument|EINVAL|Errno 22).*|out of range|libnuma: Warning: cpu",
    re.IGNORECASE,
)
_WORDS = (
    "CPU Affinity",
    "CpuAffinity",
    "Cpus_allowed_list",
    "affinity list",
    "sched_setaffinity",
    "numa_node",
    "local_cpulist",
    "physcpubind",
)


class Sets(Record, frozen=True, kw_only=True):
    """The CPUs a text tells of: near each GPU, allowed to the job, asked for, and given to processes (with their GPU, where said)."""

    near: tuple[tuple[str, frozenset[int]], ...]
    allowed: frozenset[int] | None
    asked: tuple[frozenset[int], ...]
    bound: tuple[tuple[str, str | None, frozenset[int]], ...]
    refused: bool


def diagnose_topology(text: str) -> Diagnosis | None:
    """`ok`, `misbound` or `undetermined`, or None where the text is no topology."""
    if not any(word in text for word in _WORDS):
        return None
    rows = parse_topo(text)
    sets = _sets(text, rows)
    if not rows and not sets.near and not sets.bound and not (sets.allowed is not None and (sets.asked or sets.refused)):
        return None
    return _empty(rows, sets) or _outside(sets) or _unreadable(rows, sets) or _fits(sets)


def _sets(text: str, rows: tuple[GpuRow, ...]) -> Sets:
    near = [(row.gpu, row.cpus) for row in rows if not isinstance(row.cpus, Missing)]
    for which, words in _LOCAL.findall(text):
        cpus = _cpus(words) if words else frozenset()
        if cpus is not None:  # what cannot be read is not empty
            near.append((f"GPU{which}" if which.isdigit() else "the GPU", cpus))
    near += [("the GPU", cpus) for words in _LOCAL_MASK.findall(text) if (cpus := parse_mask(words)) is not None]
    allowed = [found for words in _ALLOWED.findall(text) if (found := _cpus(words)) is not None]
    asked = [
        found
        for match in _ASKED.finditer(text)
        if not _is_given(text, match) and not _counts(match) and (found := _asked(_words_of(match))) is not None
    ]
    asked += _asked_nodes(text)
    bound = tuple(its for line in text.splitlines() if (its := _bound(line)) is not None)
    return Sets(
        near=tuple(near),
        allowed=frozenset.intersection(*allowed) if allowed else None,
        asked=tuple(asked),
        bound=bound,
        refused=_REFUSED.search(text) is not None and any(word in text for word in ("affinity", "numactl", "taskset")),
    )


def _words_of(match: re.Match[str]) -> str:
    return next((words for name, words in enumerate(match.groups(), 1) if words and name != _ASKED.groupindex["many"]), "")


def _counts(match: re.Match[str]) -> bool:
    """`cpus: 8` says how many, as a rule."""
    return match["many"] is not None and _words_of(match).isdecimal()


def _is_given(text: str, match: re.Match[str]) -> bool:
    """True where the line tells what is: which CPUs are near a device, or granted; it asks for none."""
    start = text.rfind("\n", 0, match.start()) + 1
    return _GIVEN.search(text[start : match.end()]) is not None


_GIVEN = re.compile(r"local_cpu|Cpus_allowed|cpuset|CPU Affinity|(?:current|new) affinity|on-line CPU|NUMA node|available", re.IGNORECASE)


def _bound(line: str) -> tuple[str, str | None, frozenset[int]] | None:
    found = _BOUND.search(line)
    cpus = _cpus(found[2]) if found else None
    gpu = _GPU_OF.search(line)
    return (f"process {found[1]}", f"GPU{gpu[1]}" if gpu else None, cpus) if found and cpus is not None else None


def _asked_nodes(text: str) -> list[frozenset[int]]:
    """The CPUs of the nodes that numactl is asked for, where `numactl -H` lists them."""
    nodes = {number: parse_cpus(words) or frozenset() for number, words in _NODE_CPUS.findall(text)}
    return [nodes[number] for number in _NODE_ASKED.findall(text) if number in nodes]


_GPU_OF = re.compile(r"gpu ?(\d+)", re.IGNORECASE)
_NODE_CPUS = re.compile(r"^node (\d+) cpus: ([\d ]+)$", re.MULTILINE)
_NODE_ASKED = re.compile(r"--(?:cpunodebind|cpubind)[= ](\d+)")


def _cpus(words: str) -> frozenset[int] | None:
    return frozenset() if words.strip("()") in {"none", "empty"} else parse_cpus(words)


def _asked(words: str) -> frozenset[int] | None:
    if found := re.fullmatch(r"range\((\d{1,5}), ?(\d{1,5})\)", words):
        return frozenset(range(int(found[1]), int(found[2])))
    return parse_cpus(words)


def _empty(rows: tuple[GpuRow, ...], sets: Sets) -> Diagnosis | None:
    """The driver names no CPU for a GPU: it shows only those that the job may use, and none is near."""
    empty = tuple(dict.fromkeys(gpu for gpu, cpus in sets.near if not cpus))
    blank = tuple(row.gpu for row in rows if isinstance(row.cpus, Missing)) if sets.allowed is not None else ()
    if not empty and not blank:
        return None
    allowed = f"; this process may use CPUs {say_cpus(sets.allowed)}" if sets.allowed is not None else ""
    return Diagnosis(
        verdict="misbound",
        cause="affinity_empty",
        certainty=Certainty.SUPPORTED if empty else Certainty.SUSPECTED,
        sentence=f"no CPU is named for {', '.join(empty or blank)}{allowed}: nothing to bind to",
        reasons_for=(f"the list of CPUs near {', '.join(empty or blank)} is empty",),
        suggested=("Do not bind here, and warn: an empty set given to sched_setaffinity is an error (EINVAL)",),
    )


def _outside(sets: Sets) -> Diagnosis | None:
    near = frozenset().union(*(cpus for _, cpus in sets.near)) if sets.near else None
    if sets.allowed is not None:
        for asked in sets.asked:
            if asked and not asked <= sets.allowed:
                return _misbound(
                    f"CPUs {say_cpus(asked - sets.allowed)} are asked for, and this process may use {say_cpus(sets.allowed)} alone"
                )
        if near and not near & sets.allowed:
            return _misbound(f"this process may use CPUs {say_cpus(sets.allowed)}, and none of them is near a GPU ({say_cpus(near)})")
    for who, gpu, cpus in sets.bound:
        its = frozenset().union(*(here for name, here in sets.near if gpu in {None, name})) if near else None
        if its and cpus and not cpus & its:
            return _misbound(f"{who} runs on CPUs {say_cpus(cpus)}, and {gpu or 'the GPUs'} near {say_cpus(its)}")
        if sets.allowed is not None and not cpus <= sets.allowed:
            return _misbound(f"{who} is bound to CPUs {say_cpus(cpus - sets.allowed)} outside of {say_cpus(sets.allowed)}")
    if sets.refused and sets.allowed is not None:
        return _misbound(f"a binding was refused; this process may use CPUs {say_cpus(sets.allowed)}")
    return None


def _misbound(why: str) -> Diagnosis:
    return Diagnosis(
        verdict="misbound",
        cause="affinity_outside_cpuset",
        certainty=Certainty.SUPPORTED,
        sentence=why,
        reasons_for=(why,),
        suggested=("Bind only to the CPUs that are both near the GPU and allowed (sched_getaffinity), and not at all where none is",),
    )


def _unreadable(rows: tuple[GpuRow, ...], sets: Sets) -> Diagnosis | None:
    refused = [(row.gpu, row.cpus.reason) for row in rows if isinstance(row.cpus, Missing)]
    if not refused or sets.near:
        return None
    return Diagnosis(
        verdict="undetermined",
        cause="unknown",
        sentence=f"the row of {refused[0][0]} cannot be read: {refused[0][1]}",
        suggested=("Read /sys/bus/pci/devices/ADDRESS/local_cpulist instead; it has no layout to mistake",),
    )


def _fits(sets: Sets) -> Diagnosis:
    if not sets.near:
        return Diagnosis(verdict="undetermined", cause="unknown", sentence="the text does not say which CPUs are near a GPU")
    said = "; ".join(f"{gpu}: CPUs {say_cpus(cpus)}" for gpu, cpus in sets.near)
    within = f", of which this process may use {say_cpus(sets.allowed)}" if sets.allowed is not None else ""
    return Diagnosis(
        verdict="ok",
        cause="none",
        certainty=Certainty.SUPPORTED if sets.allowed is not None or sets.bound else Certainty.SUSPECTED,
        sentence=f"each GPU has CPUs near it: {said}{within}",
        reasons_against=() if sets.allowed is not None or sets.bound else ("which CPUs the ranks may use is not shown",),
    )
