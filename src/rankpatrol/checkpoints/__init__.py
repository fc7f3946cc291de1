"""Which checkpoint is the newest good one. One layout a file; nothing is ever unpickled."""
