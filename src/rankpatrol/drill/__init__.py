"""Faults on real ranks, and a scorecard. The injector's truth is kept apart from anything that the patrol reads."""
