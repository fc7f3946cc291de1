"""How often a job may fail."""

from rankpatrol.core.records import Record


class Budget(Record, frozen=True, kw_only=True):
    """How often a job may fail before a person should look, and how long it pauses in between.

    The first two failures of an hour are answered at once; from the third on the pause doubles, so that a broken node, mount or
    network has time to come back.
    """

    per_hour: int = 10
    per_day: int = 30
    at_once: int = 2
    first_pause_s: float = 15.0
    longest_pause_s: float = 300.0
