"""What the kernel's log says of processes that it killed."""

import re

# "Out of memory: Killed process 1234 (python3) …" and "Memory cgroup out of memory: Killed process 1234 (python3) …" (mm/oom_kill.c).
KILLED = r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+)(?: \((?P<process>[^)]*)\))?"
_KILLED = re.compile(KILLED)


def kills(text: str) -> dict[int, str]:
    """The last line of each process that was killed for want of memory, by pid."""
    return {int(seen["pid"]): line.strip() for line in text.splitlines() if (seen := _KILLED.search(line))}
