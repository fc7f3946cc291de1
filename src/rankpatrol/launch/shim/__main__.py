"""Entry: `python -I -S <this folder> LAUNCHER_PID COMMAND…`, as launch/python-shim calls it; LAUNCHER_PID 0 for `rankpatrol shim`."""

import os
import sys

# -I hides the package this file lies in; only it is imported from there, and the path is taken away again.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, _ROOT)
from rankpatrol.launch.shim.parent import main  # ruff: ignore[E402] - needs the path above

sys.path.remove(_ROOT)

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], int(sys.argv[1])))
