"""Answers from what people bring: logs, stacks, recordings, listings."""
