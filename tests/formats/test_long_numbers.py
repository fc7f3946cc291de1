"""Numbers that nobody prints."""

import pytest

from rankpatrol.formats.long_numbers import without_long_numbers
from rankpatrol.intake.diagnose import diagnose

DIGITS = "7" * 5000


def test_only_long_numbers_are_cut():
    assert without_long_numbers("rank 3: step 123456789012345678901234567890") == "rank 3: step 123456789012345678901234567890"
    assert without_long_numbers(f"rank {DIGITS}: x") == f"rank {'7' * 18}: x"


@pytest.mark.parametrize(
    "line",
    [
        f"NVRM: Xid (PCI:0000:1b:00): {DIGITS}, pid={DIGITS}, name=python",
        f"[rank{DIGITS}]:[E ProcessGroupNCCL.cpp:632] [Rank {DIGITS}] Watchdog caught collective operation timeout: X(SeqNum={DIGITS}",
        f'Process {DIGITS}: python train.py\nPython v3.11.7\n\nThread {DIGITS} (idle): "MainThread"\n    wait (threading.py:{DIGITS})',
        f"Out of memory: Killed process {DIGITS} (python) total-vm:{DIGITS}kB, anon-rss:{DIGITS}kB",
    ],
)
def test_no_digits_take_an_answer_down(tmp_path, line):
    log = tmp_path / "log.txt"
    log.write_text(line + "\n")
    assert diagnose((str(log),)).diagnosis.verdict
