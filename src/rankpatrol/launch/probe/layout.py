"""Where each mark stands in the memory that a rank shares with its shim.

Eight-byte words in the machine's own byte order (writer and reader are one machine), each stored in one piece. The groups' JSON has two
areas: the sequence's last bit names the one that is whole, so a writer that stops halfway leaves the other readable.
`launch/shim/marks.py` and `collect/marks.py` hold the same numbers: one may not import the other.
"""

from __future__ import annotations

SIZE_BYTES = 16384
MAGIC = b"RPMARKS2"  # its last letter is the version

# Words, by index. All are 0 until the rank's probe has come.
MAGIC_WORD = 0
PID = 1
STACK_START = 2  # where this program's stack begins: another one after exec (proc_pid_stat(5), field 28); 0: not known
STEPS = 3
LAST_STEP_NS = 4  # CLOCK_BOOTTIME, as all times here; 0: none yet
PHASE = 5  # time of its begin in ns, times PHASE_CODES, plus its code
FLAGS = 6
GROUPS_SEQUENCE = 7
RAISED_NS = 8  # when the program had ended with an exception; 0: it has not
WORDS = 9

PHASE_CODES = 16
# Flags.
SERVES = 1  # a server answers on the probe's socket
ANSWERS = 4  # SIGURG makes faulthandler write the stacks into the shim's pipe
UNCOUNTED = 2  # optimizer steps run where no hook is called: that their count stands still means nothing

# Each area: its length in 4 bytes, then its JSON.
AREA_BYTES = 8152
AREAS_AT = (72, 72 + AREA_BYTES)

INITIALISATION, FIRST_STEP, TRAIN_STEP, CHECKPOINT, EVALUATION, COMPILE, TEARDOWN = range(7)
PHASES = ("initialisation", "first_step", "train_step", "checkpoint", "evaluation", "compile", "teardown")
