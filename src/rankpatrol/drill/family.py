"""Every process that descends from another one, read from /proc."""

import contextlib
import signal
from pathlib import Path

from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.records import ProcessId
from rankpatrol.system.process import boot_id, send_signal, stat_fields


def descendants(pid: int) -> list[ProcessId]:
    """All living processes below `pid`, parents before children. Zombies are left out: they need no signal, only their parent's wait."""
    children: dict[int, list[ProcessId]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = stat_fields((folder / "stat").read_text())
        except (OSError, ValueError):
            continue
        if fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(ProcessId(boot_id(), int(folder.name), int(fields[19])))
    found: list[ProcessId] = []
    row = list(children.get(pid, ()))
    while row:
        found.extend(row)
        row = [child for parent in row for child in children.get(parent.pid, ())]
    return found


def kill_all(processes: list[ProcessId]) -> None:
    """Send SIGKILL to exactly these; whichever is gone already is passed over."""
    for process in processes:
        with contextlib.suppress(ProcessChanged):
            send_signal(process, signal.SIGKILL)


def say(process: ProcessId) -> str:
    """A process for people: its pid and command line, or its name where that is empty."""
    try:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:
        return f"{process.pid} (gone)"
    return f"{process.pid} {name}: {command[:120]}"
