"""The shim on another machine: `shim_on_machine.py LAUNCHER_PID ROOT COMMAND…`, where ROOT holds the machine's sysfs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from rankpatrol.launch.shim import binding
from rankpatrol.launch.shim.parent import main

binding.ROOT = sys.argv[2]
sys.exit(main(sys.argv[3:], int(sys.argv[1])))
