"""Where evidence of orphans is kept on this node."""

import os
from pathlib import Path

from rankpatrol.system.state_dir import state_dir


def evidence_folder() -> Path:
    """Root's own (an epilog has no home), or in the state directory: /tmp may be emptied, and the job's disk may be what hangs."""
    if os.geteuid() == 0 and not os.environ.get("RANKPATROL_STATE_DIR"):
        return Path("/var/lib/rankpatrol/orphans")
    return state_dir() / "orphans"
