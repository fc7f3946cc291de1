"""Control groups that tests make."""

import contextlib
import time
from pathlib import Path


def remove_cgroup(top: Path) -> None:
    """All that is left of a test's cgroups, once their processes are gone."""
    until = time.monotonic() + 10
    for folder in (*sorted(top.glob("**/"), key=lambda each: -len(each.parts)), top):
        while folder.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                folder.rmdir()
