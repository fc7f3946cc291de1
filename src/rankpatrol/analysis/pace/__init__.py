"""How fast a job goes against its own past, and who holds the others up. Pure; never a reason to act."""
