"""Checkpoints of more than one file: one layout a file, each asking only what no single file can tell."""
