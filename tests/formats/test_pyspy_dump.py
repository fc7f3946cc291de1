import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.errors import BadInput
from rankpatrol.core.snapshot import Stack
from rankpatrol.formats.pyspy import parse_dump, parse_dump_value

DATA = Path(__file__).parent.parent / "data" / "formats"


def main_frames(name: str) -> list[str]:
    main = parse_dump((DATA / name).read_bytes()).main_thread()
    assert main is not None
    return [frame.name for frame in main.frames]


def test_frames_come_innermost_first() -> None:
    frames = main_frames("pyspy_all_reduce.json")
    assert frames[0] == "_engine_run_backward"
    assert frames[-1] == "<module>"


def test_a_rank_that_waits_for_its_loader_shows_where() -> None:
    assert "_MultiProcessingDataLoaderIter._try_get_data" in main_frames("pyspy_waits_for_loader.json")


def test_a_loader_process_keeps_its_own_pid_and_its_users_frame() -> None:
    stack = parse_dump((DATA / "pyspy_loader_process.json").read_bytes())
    assert stack.pid == 27177
    assert main_frames("pyspy_loader_process.json")[0] == "DS.load_sample"


def test_a_dump_with_locals_is_read_the_same_way() -> None:
    assert main_frames("pyspy_locals.json") == main_frames("pyspy_waits_for_loader.json")


def test_state_and_line_of_each_thread_are_kept() -> None:
    stack = parse_dump((DATA / "pyspy_all_reduce.json").read_bytes())
    queue = stack.threads[0]
    assert (queue.name, queue.active, queue.owns_gil, queue.thread_id) == ("QueueFeederThread", False, False, 23184)
    assert (queue.frames[0].file, queue.frames[0].line) == ("/usr/local/lib/python3.11/threading.py", 327)


def test_unknown_names_and_thread_ids_stay_unknown() -> None:
    stack = parse_dump(b'[{"pid": 7, "thread_name": null, "os_thread_id": null, "frames": [{"name": "f", "line": null}]}]')
    assert (stack.threads[0].name, stack.threads[0].thread_id) == (None, None)
    assert (stack.threads[0].frames[0].file, stack.threads[0].frames[0].line) == ("?", 0)
    assert stack.main_thread() is None


def test_threads_of_another_process_are_not_mixed_in() -> None:
    stack = parse_dump(b'[{"pid": 7, "frames": []}, {"pid": 8, "frames": []}]')
    assert (stack.pid, len(stack.threads)) == (7, 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"Process 7: python", b"{}", b"[]", b"[1]", b'[{"pid": 7}]', b'[{"frames": []}]', b'[{"pid": "x", "frames": []}]', b"\xff\xfe"],
)
def test_what_is_no_dump_is_refused_with_the_command_that_makes_one(data: bytes) -> None:
    with pytest.raises(BadInput, match="no stack from py-spy") as refused:
        parse_dump(data)
    assert "py-spy dump --json" in refused.value.help


@given(st.binary(max_size=200))
def test_any_bytes_give_a_stack_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(BadInput):
        assert isinstance(parse_dump(data), Stack)


def test_a_dump_inside_a_larger_document_reads_the_same() -> None:
    data = (DATA / "pyspy_all_reduce.json").read_bytes()
    assert parse_dump_value(msgspec.json.decode(data)) == parse_dump(data)
    with pytest.raises(BadInput):
        parse_dump_value({"dump": []})
