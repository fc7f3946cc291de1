"""Marks as the shim's memory tells them; the test is shim and rank in one."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankpatrol.collect import marks as reader
from rankpatrol.collect.marks import read_marks
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import Marks, ProcessGroup
from rankpatrol.launch.probe import layout
from rankpatrol.launch.probe.groups import _encode, compact
from rankpatrol.launch.probe.sheet import Sheet, now_ns, open_marks
from rankpatrol.launch.shim import marks as shim
from rankpatrol.launch.shim.marks import make_marks
from rankpatrol.system.process import identify


def us() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


@pytest.fixture
def marks_fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    made = make_marks(str(tmp_path_factory.getbasetemp()))
    yield made
    os.close(made)


@pytest.fixture
def sheet(marks_fd: int) -> Sheet:
    opened = open_marks(os.dup(marks_fd))
    assert opened is not None
    opened.sign()
    return opened


def seen(fd: int) -> Marks:
    found = read_marks(us(), fd)
    assert isinstance(found, Marks), found
    return found


def reason(found: Marks | Missing) -> str:
    assert isinstance(found, Missing)
    return found.reason


def group(number: int, ranks: list[int], backend: str = "gloo") -> dict[str, object]:
    return {"name": str(number), "backend": backend, "ranks": compact(ranks), "timeout_s": 600.0}


def test_probe_shim_and_collector_mean_the_same_words() -> None:
    assert reader.SIZE_BYTES == layout.SIZE_BYTES == shim.SIZE_BYTES
    assert reader.MAGIC == layout.MAGIC == shim.MAGIC
    assert reader.PHASES == layout.PHASES
    assert reader.PHASES[layout.CHECKPOINT] == "checkpoint"
    assert (reader.PHASE_CODES, reader.SERVES, reader.UNCOUNTED) == (layout.PHASE_CODES, layout.SERVES, layout.UNCOUNTED)
    assert (reader.AREA_BYTES, reader.AREAS_AT) == (layout.AREA_BYTES, layout.AREAS_AT)
    assert reader.HEADER.size == layout.WORDS * 8 <= layout.AREAS_AT[0]
    assert layout.AREAS_AT[1] + layout.AREA_BYTES <= layout.SIZE_BYTES
    names = ["MAGIC_WORD", "PID", "STACK_START", "STEPS", "LAST_STEP_NS", "PHASE", "FLAGS", "GROUPS_SEQUENCE", "RAISED_NS"]
    assert [getattr(layout, name) for name in names] == list(range(layout.WORDS))


def test_a_sheet_that_was_not_signed_says_that_the_probe_did_not_come(marks_fd: int) -> None:
    assert "has not loaded the probe" in reason(read_marks(us(), marks_fd))


def test_what_was_marked_is_read(marks_fd: int, sheet: Sheet) -> None:
    before_s = now_ns() / 1e9
    assert seen(marks_fd).last_step_at_mono_s is None
    sheet.begin(layout.TRAIN_STEP)
    sheet.words[layout.STEPS] += 3
    sheet.words[layout.LAST_STEP_NS] = now_ns()
    found = seen(marks_fd)
    assert (found.steps, found.phase, found.groups) == (3, "train_step", ())
    assert found.last_step_at_mono_s is not None
    assert before_s <= found.phase_since_mono_s <= found.last_step_at_mono_s <= now_ns() / 1e9


def test_the_first_word_of_an_exception_stands(marks_fd: int, sheet: Sheet) -> None:
    assert seen(marks_fd).raised_at_mono_s is None
    before_s = now_ns() / 1e9
    sheet.raises()
    first_s = seen(marks_fd).raised_at_mono_s
    assert first_s is not None
    assert before_s <= first_s <= now_ns() / 1e9
    sheet.raises()
    assert seen(marks_fd).raised_at_mono_s == first_s


def test_saves_and_compilations_hide_the_phase_until_they_end(marks_fd: int, sheet: Sheet) -> None:
    phases = []
    sheet.begin(layout.TRAIN_STEP)
    for act in (
        lambda: sheet.saving(1),
        lambda: sheet.saving(1),
        lambda: sheet.compiling(True),
        lambda: sheet.saving(-1),
        lambda: sheet.compiling(False),
        lambda: sheet.saving(-1),
    ):
        act()
        phases.append(seen(marks_fd).phase)
    assert phases == ["checkpoint", "checkpoint", "compile", "compile", "checkpoint", "train_step"]


def test_a_phase_that_goes_on_keeps_its_beginning(marks_fd: int, sheet: Sheet) -> None:
    sheet.begin(layout.TRAIN_STEP)
    before = seen(marks_fd)
    sheet.begin(layout.TRAIN_STEP)
    assert seen(marks_fd) == before


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 1 << 20), min_size=1, max_size=40, unique=True),
            st.builds(lambda n: list(range(n)), st.integers(1, 9000)),
        ),
        max_size=6,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_groups_are_read_as_they_were_written(marks_fd: int, sheet: Sheet, members: list[list[int]]) -> None:
    sheet.write_groups(_encode([group(number, sorted(ranks)) for number, ranks in enumerate(members)]))
    assert seen(marks_fd).groups == tuple(
        ProcessGroup(name=str(number), backend="gloo", ranks=tuple(sorted(ranks)), timeout_s=600.0) for number, ranks in enumerate(members)
    )


def test_groups_that_do_not_fit_are_left_out_from_the_last(marks_fd: int, sheet: Sheet) -> None:
    odd = [rank for rank in range(1100) if rank % 7]
    sheet.write_groups(_encode([group(number, odd) for number in range(9)]))
    names = [found.name for found in seen(marks_fd).groups]
    assert names
    assert names == [str(number) for number in range(len(names))]
    assert len(names) < 9


def test_a_writer_that_stopped_halfway_leaves_what_was_before(marks_fd: int, sheet: Sheet) -> None:
    sheet.write_groups(_encode([group(0, [0, 1])]))
    before = seen(marks_fd)
    sequence = sheet.words[layout.GROUPS_SEQUENCE]
    os.pwrite(marks_fd, b"\xff\xff\x00\x00[{half", layout.AREAS_AT[(sequence + 1) % 2])
    assert seen(marks_fd) == before


def test_no_reader_ever_sees_half_of_the_groups(marks_fd: int, sheet: Sheet) -> None:
    texts = [
        _encode([group(number, list(range(number, number + size))) for _ in range(size)]) for number, size in ((1, 40), (2, 9), (3, 60))
    ]
    whole = {1: 40, 2: 9, 3: 60}
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for text in texts:
                sheet.write_groups(text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        read = 0
        while read < 300:
            found = read_marks(us(), marks_fd)
            if isinstance(found, Marks) and found.groups:
                read += 1
                assert len({one.name for one in found.groups}) == 1
                assert len(found.groups) == whole[int(found.groups[0].name)]
            elif isinstance(found, Missing):
                assert found.reason == "the marks changed faster than they could be read"
    finally:
        done.set()
        writer.join()


@given(st.binary(min_size=0, max_size=200), st.integers(0, 100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_stands_there_nothing_is_raised(marks_fd: int, spoiled: bytes, at: int) -> None:
    os.pwrite(marks_fd, b"\x00" * 300, 0)
    os.pwrite(marks_fd, layout.MAGIC + b"\x01" * 8, 0)
    os.pwrite(marks_fd, spoiled, at)
    assert isinstance(read_marks(us(), marks_fd), Marks | Missing)


def test_marks_of_another_version_are_not_guessed(marks_fd: int) -> None:
    os.pwrite(marks_fd, b"RPMARKS9", 0)
    assert "another version" in reason(read_marks(us(), marks_fd))


def test_a_phase_that_is_not_known_is_not_guessed(marks_fd: int, sheet: Sheet) -> None:
    sheet.begin(15)
    assert "phase 15" in reason(read_marks(us(), marks_fd))


def test_a_count_that_stands_still_by_itself_is_not_told(marks_fd: int, sheet: Sheet) -> None:
    sheet.flag(layout.UNCOUNTED)
    assert "cannot be counted" in reason(read_marks(us(), marks_fd))


def test_a_shim_that_is_gone_or_whose_pid_is_worn_by_another_is_said(marks_fd: int) -> None:
    worn = ProcessId(us().boot_id, us().pid, us().start_ticks - 1)
    assert "is gone" in reason(read_marks(worn, marks_fd))
    assert "is gone" in reason(read_marks(ProcessId(us().boot_id, 1 << 22, 1), marks_fd))


def test_a_descriptor_that_leads_to_no_marks_is_said_and_never_waited_for() -> None:
    ours, theirs = os.pipe()
    with Path("/dev/null").open("rb") as device, Path("/proc/self/stat").open("rb") as file:
        for fd in (ours, theirs, device.fileno(), file.fileno()):
            assert "leads to no marks" in reason(read_marks(us(), fd))
    os.close(ours)
    os.close(theirs)
    assert "holds no descriptor" in reason(read_marks(us(), 9999))
