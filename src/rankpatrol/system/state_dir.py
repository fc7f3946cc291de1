"""Where rankpatrol keeps what outlives a job. One rule for all of it."""

import os
from pathlib import Path


def state_dir() -> Path:
    """RANKPATROL_STATE_DIR, else this user's state directory (XDG Base Directory Specification). Raises RuntimeError without a home."""
    if named := os.environ.get("RANKPATROL_STATE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME", "")  # a relative one is to be passed by, says the specification
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "rankpatrol"
