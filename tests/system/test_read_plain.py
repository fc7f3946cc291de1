"""Files of others are read without waiting for them."""

import os

import pytest

from rankpatrol.core.errors import BadInput
from rankpatrol.system.files import read_plain


def test_a_file_is_read_whole_up_to_its_most(tmp_path):
    (tmp_path / "a").write_bytes(b"four")
    assert read_plain(tmp_path / "a", 4) == b"four"
    with pytest.raises(BadInput, match="larger than 3 bytes"):
        read_plain(tmp_path / "a", 3)


def test_what_is_not_there_is_the_callers_to_explain(tmp_path):
    for path in (tmp_path / "none", tmp_path / "none" / "below"):
        with pytest.raises(FileNotFoundError):
            read_plain(path, 1)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path), lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_says_what_to_do(tmp_path, make):
    make(tmp_path / "a")
    with pytest.raises(BadInput) as refused:
        read_plain(tmp_path / "a", 1)
    assert "copy" in refused.value.help


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(BadInput):
            read_plain(tmp_path / name, 1)
