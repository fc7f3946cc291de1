"""What `rankpatrol bind` would decide in this place on another machine: `bind_on_machine.py ROOT` prints it as JSON, a line."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from rankpatrol.affinity import binder
from rankpatrol.affinity.plan import Want, document

print(json.dumps(document(binder.decide(os.environ, Want(), os.getppid(), sys.argv[1]))), flush=True)
