"""torchrun's own lines, as each version writes them, are read for what they say."""

from string import Template

import pytest
from torch_surfaces import ELASTIC, SURFACES, VERSIONS

from rankpatrol.core.testimony import Fact, Kind
from rankpatrol.formats.log_reader import Reader

every_version = pytest.mark.parametrize("version", VERSIONS)
ELASTIC_LINES = (
    # (file, how the format begins, what is filled in, the kind, values)
    ("multiprocessing/api.py", "Sending process {}", ("4711", "SIGTERM"), Kind.STOPPED_BY_LAUNCHER, {"pid": "4711", "signal": "SIGTERM"}),
    ("multiprocessing/api.py", "Closing process {}", ("4711", "SIGTERM"), Kind.STOPPED_BY_LAUNCHER, {"pid": "4711", "signal": "SIGTERM"}),
    ("multiprocessing/api.py", "Unable to shutdown process", ("4711", "Signals.SIGTERM", "9"), Kind.STOPPED_BY_LAUNCHER, {"pid": "4711"}),
    (
        "multiprocessing/api.py",
        "failed (exitcode: {}) local_rank: {} (pid: {}) of binary",
        ("-9", "3", "4711", "/usr/bin/python"),
        Kind.EXITED,
        {"code": "-9", "local": "3", "pid": "4711"},
    ),
    (
        "multiprocessing/api.py",
        "failed (exitcode: {}) local_rank: {} (pid: {}) of fn",
        ("1", "3", "4711", "main", "spawn"),
        Kind.EXITED,
        {"code": "1", "local": "3", "pid": "4711"},
    ),
    ("agent/server/api.py", "Received {} death signal", ("Signals.SIGTERM",), Kind.SIGNALLED, {"signal": "SIGTERM"}),
    ("agent/server/api.py", "Received {} death signal", ("15",), Kind.SIGNALLED, {"signal": "15"}),
    ("agent/server/api.py", "[{}] Starting worker group", ("default",), Kind.PHASE, {}),
    ("timer/file_based_local_timer.py", "Reaping worker_pid=[{}]", ("4711", "[1]"), Kind.SIGNALLED, {"pid": "4711"}),
    ("timer/api.py", "Reaping worker_id=[{}]", ("4711", "[1]"), Kind.SIGNALLED, {"pid": "4711"}),
)


def facts(text: str) -> list[Fact]:
    reader = Reader("log")
    found = [fact for number, line in enumerate(text.split("\n"), 1) for fact in reader.read(number, line)]
    return [*found, *reader.finish()]


@every_version
@pytest.mark.parametrize(("file", "begins", "filled", "kind", "values"), ELASTIC_LINES, ids=lambda each: str(each)[:40])
def test_a_line_of_torchruns_is_read(
    version: str, file: str, begins: str, filled: tuple[str, ...], kind: Kind, values: dict[str, str]
) -> None:
    (form,) = [line for line in SURFACES[version]["log_lines"][ELASTIC + file] if line.startswith(begins)]
    seen = facts(f"E1129 20:41:00.000000 4700 site-packages/{ELASTIC}{file}:1] " + form.format(*filled))
    assert any(fact.kind is kind and values.items() <= fact.values.items() for fact in seen), seen


@every_version
def test_the_signal_that_ended_torchrun_is_read_from_its_traceback(version: str) -> None:
    (form,) = [line for line in SURFACES[version]["log_lines"][ELASTIC + "multiprocessing/api.py"] if line == "Process {} got signal: {}"]
    line = "torch.distributed.elastic.multiprocessing.api.SignalException: " + form.format("4700", "15")
    assert [fact.values for fact in facts(line) if fact.kind is Kind.SIGNALLED] == [{"pid": "4700", "signal_number": "15"}]


@every_version
@pytest.mark.parametrize("signal", [None, "SIGKILL"])
def test_the_table_of_failures_is_read(version: str, signal: str | None) -> None:
    templates, messages = SURFACES[version]["templates"], SURFACES[version]["log_lines"][ELASTIC + "multiprocessing/errors/__init__.py"]
    (message,) = [line for line in messages if line == "Signal {} ({}) received by PID {}"]
    told = Template(templates["_FAILURE_FORMAT_TEMPLATE"])
    row = told.substitute(
        idx=0,
        time="2026-11-29_20:41:00",
        hostname="node-a",
        rank=11,
        local_rank=3,
        exitcode=-9 if signal else 1,
        pid=4711,
        signal_name=f"({signal})" if signal else "",
        error_file="<N/A>",
        message=message.format(9, signal, 4711) if signal else "To enable traceback see: https://…",
    )
    page = Template(templates["_MSG_FORMAT_TEMPLATE"]).substitute(
        boarder="=" * 60, title="train.py FAILED", section="-" * 60, other_failures="  <NO_OTHER_FAILURES>", root_failure=row
    )
    seen = {fact.word: fact.values for fact in facts(page) if fact.kind is Kind.EXITED}
    assert seen["row_rank"] == {"rank": "11", "local": "3"}
    assert seen["row_host"] == {"host": "node-a"}
    assert seen["row_code"] == {"code": "-9" if signal else "1", "pid": "4711"}
    assert "row_first" in seen
    if signal:
        assert seen["row_signal"] == {"signal_number": "9", "signal": "SIGKILL", "pid": "4711"}
