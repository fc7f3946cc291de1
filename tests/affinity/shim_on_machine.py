"""The shim on another machine: `shim_on_machine.py LAUNCHER_PID ROOT COMMAND…`, where ROOT holds the machine's sysfs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from rankpatrol.launch.shim import desk, parent


class OnMachine(desk.Desk):
    def wants_binding(self) -> bool:
        if not super().wants_binding():
            return False
        from rankpatrol.launch.shim import binding

        binding.ROOT = sys.argv[2]
        return True


parent.Desk = OnMachine
sys.exit(parent.main(sys.argv[3:], int(sys.argv[1])))
