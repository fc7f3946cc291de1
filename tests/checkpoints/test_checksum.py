"""One CRC-32, whoever computes it."""

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.checkpoints import checksum


@given(st.binary(max_size=4096), st.integers(0, 0xFFFFFFFF))
def test_checksum_is_that_of_zip_files_and_goes_on_from_a_former_one(data, before):
    assert checksum.crc32(memoryview(data), before) == zlib.crc32(data, before)


def test_machine_without_the_fast_code_computes_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(checksum).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksum)


def test_the_fast_code_is_what_runs_here():
    pytest.importorskip("isal")
    assert checksum.crc32 is not zlib.crc32
