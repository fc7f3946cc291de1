"""The probe: marks steps, phases and groups from inside the rank. Standard library only, the training's own Python, 3.8 or later."""
