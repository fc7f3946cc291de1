"""Lists of CPUs as the kernel, numactl and NVML print them."""

import re

_MOST_CPUS = 8192
_MASK = re.compile(r"^[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8}){0,255}$")
_LIST = re.compile(r"^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$")


def parse_cpus(words: str) -> frozenset[int] | None:
    """`0-3,8-11`, `0 1 2`, `[0, 1]`, `{4, 5}` or a mask `0xff`, as a set; None for anything else."""
    plain = words.strip().strip("[]{}()'\"").strip()
    if re.fullmatch(r"0x[0-9a-fA-F]{1,512}", plain):
        mask = int(plain, 16)
        return frozenset(at for at in range(min(mask.bit_length(), _MOST_CPUS)) if mask >> at & 1)
    joined = re.sub(r"[\s,]+", ",", plain).strip(",")
    if not joined:
        return frozenset() if words.strip() else None
    if not _LIST.match(joined):
        return None
    found: set[int] = set()
    for part in joined.split(","):
        first, _, last = part.partition("-")
        if len(first) > 5 or len(last) > 5:
            return None
        found.update(range(int(first), min(int(last or first), _MOST_CPUS) + 1))
    return frozenset(found)


def parse_mask(words: str) -> frozenset[int] | None:
    """`3`, `ff` or `00000000,0000ffff`, as the kernel prints a mask (words of 32 bits, the highest first); None for anything else."""
    if not _MASK.match(words.strip()):
        return None
    mask = int(words.strip().replace(",", ""), 16)
    return frozenset(at for at in range(min(mask.bit_length(), _MOST_CPUS)) if mask >> at & 1)


def say_cpus(cpus: frozenset[int]) -> str:
    """A set in the kernel's form; `none` where it is empty."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
