"""The settings that say how often a job may fail."""

from collections.abc import Mapping
from typing import Any, Final

from rankpatrol.core.budget import Budget

BUDGET_NAMES: Final = ("failures-per-hour", "failures-per-day", "first-pause", "longest-pause")


def budget(settings: Mapping[str, Any]) -> Budget:
    """The budget that these values make, by their names in Python."""
    return Budget(
        per_hour=settings["failures_per_hour"],
        per_day=settings["failures_per_day"],
        first_pause_s=settings["first_pause"],
        longest_pause_s=settings["longest_pause"],
    )
