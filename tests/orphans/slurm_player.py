"""`rankpatrol orphans WORDS…` as slurmd starts it, with a folder of the test's for its memory: FOLDER WORDS…; notes its exit code there."""

import os
import sys
from pathlib import Path

from click.testing import CliRunner

from rankpatrol.cli import orphans as command

folder = Path(sys.argv[1])
os.environ["RANKPATROL_STATE_DIR"] = str(folder / "state")
done = CliRunner().invoke(command.orphans, [*sys.argv[2:], "--device", str(folder / "nvidia*"), "--every", "10ms"], standalone_mode=False)
with (folder / "codes").open("a") as codes:
    print(next(word for word in sys.argv if word in {"--prolog", "--epilog"}), done.return_value, done.exception, file=codes)
sys.exit(done.return_value)
