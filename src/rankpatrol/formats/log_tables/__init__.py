"""The tables of log lines, one module a source. A new line is a new row."""

from rankpatrol.formats.log_tables import devices, launchers, nccl, observer, phases, python, schedulers, torch
from rankpatrol.formats.log_tables.row import Row

# In order: the first row that fits a line speaks for it, so the exact ones stand before the general ones.
ROWS: tuple[Row, ...] = (
    *torch.ROWS,
    *nccl.ROWS,
    *schedulers.ROWS,
    *launchers.ROWS,
    *devices.ROWS,
    *python.ROWS,
    *observer.ROWS,
    *phases.ROWS,
)
