"""Finds the distributed jobs that already run on this node, and says which of their processes is which rank."""
