"""The driver's own error reports in a kernel log: `NVRM: Xid (PCI:0000:18:00): 79, …`. Numbers as NVIDIA's Xid catalogue explains them."""

import re

from rankpatrol.core.records import Record

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
_TIME = re.compile(r"^\[\s*(\d+\.\d+)\]")
_MEANINGS = {
    13: "an exception in a kernel of the program",
    31: "a kernel of the program read or wrote outside of its memory",
    43: "the program's GPU work was stopped",
    45: "the program's work was cleaned up after an error",
    48: "an uncorrectable memory error",
    63: "a memory page was retired or a row remapped",
    64: "a memory page could not be retired",
    74: "an error of an NVLink",
    79: "the GPU has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
}


class Xid(Record, frozen=True, kw_only=True):
    """One report. `at_boot_s`: seconds since the machine started, where the line says so."""

    address: str
    number: int
    meaning: str
    at_boot_s: float | None = None


def xids(kernel_log: str) -> tuple[Xid, ...]:
    """All reports of a kernel log, oldest first."""
    return tuple(xid for line in kernel_log.splitlines() if (xid := _xid(line)) is not None)


def _xid(line: str) -> Xid | None:
    if (seen := _XID.search(line)) is None:
        return None
    time, number = _TIME.match(line), int(seen[2])
    meaning = _MEANINGS.get(number, "see NVIDIA's catalogue")
    return Xid(address=seen[1].lower(), number=number, meaning=meaning, at_boot_s=float(time[1]) if time else None)
