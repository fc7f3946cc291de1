"""The shim with other deadlines: `quick_shim.py LAUNCHER_PID DEADLINES COMMAND…`, where DEADLINES is JSON."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from rankpatrol.launch.shim.deadlines import Deadlines
from rankpatrol.launch.shim.parent import main

sys.exit(main(sys.argv[3:], int(sys.argv[1]), Deadlines(**json.loads(sys.argv[2]))))
