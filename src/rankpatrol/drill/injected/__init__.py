"""Code that is copied into a training's own process. Standard library only, Python 3.8 and later."""
