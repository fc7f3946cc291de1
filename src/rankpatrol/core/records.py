"""The base of every record, and the value that stands for not knowing."""

import msgspec


class Record(msgspec.Struct, frozen=True):
    """A frozen value; its field names carry their unit."""


class Missing(Record, frozen=True, tag="missing"):
    """A fact that could not be learned, and why. Never evidence of health, nor of a stall."""

    reason: str


class ProcessId(Record, frozen=True):
    """One process for all time: a pid alone is worn by others later (proc_pid_stat(5), field 22)."""

    boot_id: str
    pid: int
    start_ticks: int
