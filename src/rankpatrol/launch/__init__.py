"""How a training starts under patrol: a small parent, and one shim above each rank."""
