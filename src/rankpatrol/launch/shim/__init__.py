"""One rank's parent. Runs under the training's own Python (3.8 or later), with the standard library alone."""
