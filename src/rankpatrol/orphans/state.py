"""Where evidence of orphans is kept on this node."""

import os
from pathlib import Path


def evidence_folder() -> Path:
    """Root's own, or the user's state folder (XDG basedir): /tmp may be emptied, and the job's disk may be what hangs."""
    if os.geteuid() == 0:
        return Path("/var/lib/rankpatrol/orphans")
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(state) / "rankpatrol" / "orphans"
