"""The doctor's verdicts are pure; what it looks at may hang, fail, or be another's, and is then a row of its own."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.errors import ExitCode
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Marks, ProcessGroup
from rankpatrol.doctor import machine, tracing, training
from rankpatrol.doctor.checks import CHECKS, Check, examine
from rankpatrol.doctor.groups import judge_groups
from rankpatrol.doctor.rows import Level, Row, exit_code
from rankpatrol.doctor.subject import JobFacts, Subject, training_python
from rankpatrol.doctor.tracing import TracingRules, hidepid_of, judge_child, judge_rules
from rankpatrol.doctor.training import PythonFacts, TorchFacts, judge_python, judge_torch, recorder_of, version_of
from rankpatrol.doctor.variables import judge_variables
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import JobSpec
from standin_job import LAUNCHER, TRAINING, running

HERE = Subject(python=sys.executable, python_by="the test", environment=dict(os.environ))
USER = TracingRules(yama=1, uid=1000, has_capability=False, own_user_namespace=False, hidepid=None, container=None)


def levels(rows: tuple[Row, ...]) -> dict[str, Level]:
    return {row.name: row.level for row in rows}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([], ExitCode.OK),
        ([Level.OK, Level.HINT], ExitCode.OK),
        ([Level.UNKNOWN], ExitCode.UNKNOWN),
        ([Level.UNKNOWN, Level.WARNING], ExitCode.WARNING),
        ([Level.WARNING, Level.FORBIDDEN], ExitCode.NO_PERMISSION),
        ([Level.FORBIDDEN, Level.CRITICAL], ExitCode.CRITICAL),
    ],
)
def test_the_worst_row_gives_the_exit_code(said: list[Level], code: ExitCode) -> None:
    assert exit_code(Row("x", level, "") for level in said) == code


@pytest.mark.parametrize(
    ("changes", "yama", "others"),
    [
        ({"yama": None}, Level.OK, Level.OK),
        ({"yama": 0}, Level.OK, Level.OK),
        ({"yama": 1}, Level.OK, Level.OK),
        ({"yama": 2}, Level.FORBIDDEN, Level.OK),
        ({"yama": 2, "has_capability": True}, Level.OK, Level.OK),
        ({"yama": 3, "has_capability": True}, Level.FORBIDDEN, Level.OK),
        # A default container: root, but not with this capability.
        ({"yama": None, "uid": 0, "container": "Docker"}, Level.OK, Level.WARNING),
        ({"yama": None, "uid": 0, "has_capability": True, "own_user_namespace": True}, Level.OK, Level.WARNING),
        ({"yama": None, "uid": 0, "has_capability": True}, Level.OK, Level.OK),
    ],
)
def test_who_may_trace_whom(changes: dict[str, object], yama: Level, others: Level) -> None:
    rows = levels(judge_rules(TracingRules(**{**{name: getattr(USER, name) for name in USER.__struct_fields__}, **changes})))
    assert (rows["yama"], rows["other-users"]) == (yama, others)


@given(
    st.sampled_from([None, 0, 1, 2, 3]),
    st.booleans(),
    st.sampled_from([None, "2", "invisible", "ptraceable"]),
    st.sampled_from([0, 7]),
)
def test_a_right_more_never_makes_the_verdict_worse(yama: int | None, namespace: bool, hidepid: str | None, uid: int) -> None:
    without, with_it = (
        judge_rules(TracingRules(yama=yama, uid=uid, has_capability=has, own_user_namespace=namespace, hidepid=hidepid, container=None))
        for has in (False, True)
    )
    order = list(Level)
    for name, level in levels(with_it).items():
        assert order.index(level) <= order.index(levels(without)[name])


MOUNTINFO = "25 30 0:23 / {where} rw,nosuid{options} shared:13 - proc proc rw{more}"


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        (MOUNTINFO.format(where="/proc", options="", more=""), None),
        (MOUNTINFO.format(where="/proc", options="", more=",hidepid=2"), "2"),
        (MOUNTINFO.format(where="/proc", options="", more=",hidepid=invisible,gid=4"), "invisible"),
        (MOUNTINFO.format(where="/proc", options="", more=",hidepid=off"), None),
        (MOUNTINFO.format(where="/srv/chroot/proc", options="", more=",hidepid=2"), None),
        (MOUNTINFO.format(where="/proc", options="", more="") + "\n" + MOUNTINFO.format(where="/proc", options="", more=",hidepid=2"), "2"),
        ("", None),
    ],
)
def test_what_hides_processes_is_read_from_the_mount_that_covers_the_others(line: str, hidden: str | None) -> None:
    assert hidepid_of(line, {1000}) == hidden


@pytest.mark.parametrize(
    ("options", "hidden"),
    [("hidepid=2", None), ("hidepid=2,gid=1000", "2"), ("hidepid=ptraceable", "ptraceable"), ("hidepid=1,gid=0", None)],
)
def test_a_group_may_be_spared(options: str, hidden: str | None) -> None:
    assert hidepid_of(MOUNTINFO.format(where="/proc", options="", more=f",{options}"), {0}) == hidden


def test_a_stack_of_a_child_is_really_taken() -> None:
    (row,) = judge_child(tracing.look_at_child())
    assert row.level is Level.OK
    assert not _children_called("time.sleep(60)"), "the child is gone"


def _children_called(word: str) -> list[str]:
    done = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if word in line]


@pytest.mark.parametrize(
    ("reason", "level"),
    [
        ("the kernel forbids tracing process 7: give the agent CAP_SYS_PTRACE", Level.FORBIDDEN),
        ("py-spy is not installed beside rankpatrol's Python nor on PATH", Level.CRITICAL),
        ("py-spy failed on process 7: Failed to parse", Level.CRITICAL),
    ],
)
def test_why_no_stack_could_be_taken_is_told_apart(reason: str, level: Level) -> None:
    (row,) = judge_child(Missing(reason))
    assert row.level is level
    assert row.fix


@pytest.mark.parametrize(
    ("text", "version", "entries"),
    [
        ("2.13.0+cu128", (2, 13), 2000),
        ("2.9.1", (2, 9), 2000),
        ("2.8.0", (2, 8), None),
        ("2.6.0+rocm6.2", (2, 6), 0),
        ("2.3.1", (2, 3), 0),
        ("2.1.0a0+git1a2b3c", (2, 1), None),
        ("3.0.0", (3, 0), 2000),
        ("nightly", None, None),
    ],
)
def test_versions_are_read_and_known_by_their_recorder(text: str, version: tuple[int, int] | None, entries: int | None) -> None:
    assert version_of(text) == version
    assert recorder_of(version).entries == entries


@pytest.mark.parametrize(
    ("version", "has", "environment", "wanted"),
    [
        ("2.13.0", ("_WorkerServer", "_dump_fr_trace_json"), {}, {"worker-server": Level.OK, "flight-recorder": Level.OK}),
        ("2.0.1", (), {}, {"worker-server": Level.WARNING, "flight-recorder": Level.UNKNOWN}),
        ("2.5.1", ("_WorkerServer", "_dump_nccl_trace_json"), {}, {"worker-server": Level.OK, "flight-recorder": Level.WARNING}),
        (
            "2.5.1",
            ("_WorkerServer",),
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            {"worker-server": Level.WARNING, "flight-recorder": Level.OK},
        ),
        (
            "2.13.0",
            ("_WorkerServer", "_dump_fr_trace_json"),
            {"TORCH_FR_BUFFER_SIZE": "0"},
            {"worker-server": Level.OK, "flight-recorder": Level.WARNING},
        ),
    ],
)
def test_each_torch_is_told_by_what_it_has(
    version: str, has: tuple[str, ...], environment: dict[str, str], wanted: dict[str, Level]
) -> None:
    rows = levels(judge_torch(TorchFacts(version=version, cuda=None, distributed=True, has=has), environment))
    assert {name: rows[name] for name in wanted} == wanted


def test_a_torch_without_distributed_is_of_no_use() -> None:
    (row,) = judge_torch(TorchFacts(version="2.13.0", cuda=None, distributed=False, has=()), {})
    assert row.level is Level.CRITICAL


def test_an_old_python_is_told() -> None:
    facts = PythonFacts(version=(3, 7, 9), executable="/usr/bin/python3", torch="1.13")
    assert levels(judge_python(facts, HERE)) == {"python": Level.CRITICAL}


def test_a_users_sitecustomize_that_raises_is_told_and_does_not_hide_the_rest(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('my own mistake')")
    subject = Subject(python=sys.executable, python_by="the test", environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    rows = judge_python(training.ask_python(subject), subject)
    told = next(row for row in rows if row.name == "sitecustomize")
    assert (told.level, "my own mistake" in told.found) == (Level.WARNING, True)
    assert levels(rows)["python"] is Level.OK


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true", "/etc/passwd"])
def test_what_is_no_python_is_said(python: str) -> None:
    subject = Subject(python=python, python_by="--python", environment=dict(os.environ))
    (row,) = judge_python(training.ask_python(subject), subject)
    assert row.level is Level.CRITICAL
    assert "--python PATH" in row.fix


def test_a_python_without_torch_is_a_warning(tmp_path: Path) -> None:
    subject = Subject(python=sys.executable, python_by="the test", environment={"PATH": os.environ["PATH"]})
    facts = training.ask_python(Subject(python=shutil.which("python3", path="/usr/bin") or sys.executable, python_by="", environment={}))
    assert isinstance(facts, PythonFacts)
    if facts.torch is None:
        assert levels(judge_python(facts, subject))["torch"] is Level.WARNING


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"#!{python}\nimport sys\n", True),
        (b"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n", True),
        (b"#!/usr/bin/env -S python3\n", True),
        (b"#!/bin/bash\n", False),
        (b"\x7fELF", False),
        (b"", False),
    ],
)
def test_the_interpreter_of_torchrun_is_the_trainings(tmp_path: Path, content: bytes, found: bool) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_bytes(content.replace(b"{python}", sys.executable.encode()))
    torchrun.chmod(0o755)
    _, by = training_python(f"{tmp_path}:{os.environ['PATH']}")
    assert ("torchrun" in by) == found


@pytest.mark.parametrize(
    ("environment", "version", "cuda", "told"),
    [
        ({}, (2, 13), True, {"NCCL_DEBUG"}),
        ({"NCCL_DEBUG": "WARN"}, (2, 13), True, set()),
        ({"NCCL_DEBUG": "WARN"}, (2, 5), True, {"TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ({"NCCL_DEBUG": "WARN", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, (2, 5), True, set()),
        ({"NCCL_DEBUG": "WARN", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, (2, 13), True, {"TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_DEBUG": "INFO"}, (2, 13), True, {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}),
        ({}, (2, 13), False, set()),
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, (2, 13), False, {"TORCH_DISTRIBUTED_DEBUG"}),
        ({}, None, False, set()),
    ],
)
def test_only_variables_that_matter_to_this_torch_are_told(
    environment: dict[str, str], version: tuple[int, int] | None, cuda: bool, told: set[str]
) -> None:
    rows = judge_variables(environment, version, cuda=cuda)
    assert {row.name for row in rows} == (told or {"variables"})


def job(*groups: ProcessGroup, patience_s: float = 180.0, marks: dict[int, Marks | Missing] | None = None) -> JobFacts:
    spec = JobSpec(job="j", job_dir="/j", command=("t",), policy="recover", patience_s=patience_s, checkpoints=None, started_unix_s=0.0)
    mine = Marks(steps=1, last_step_at_mono_s=None, phase="train_step", phase_since_mono_s=0.0, groups=groups)
    return JobFacts(spec=spec, marks={0: mine} if marks is None else marks, pids=(7,))


@pytest.mark.parametrize(
    ("timeout_s", "patience_s", "level"),
    [
        (600.0, 180.0, Level.HINT),
        (1800.0, 180.0, Level.HINT),
        (180.0, 180.0, Level.WARNING),
        (900.0, 180.0, Level.OK),
        (600.0, 900.0, Level.WARNING),
    ],
)
def test_a_groups_own_time_out_is_held_against_patience(timeout_s: float, patience_s: float, level: Level) -> None:
    (row,) = judge_groups(job(ProcessGroup(name="0", backend="nccl", ranks=(0, 1), timeout_s=timeout_s), patience_s=patience_s))
    assert row.level is level
    if level is Level.WARNING:
        assert "victim" in row.found
        assert "timedelta(minutes=" in row.fix


def test_ranks_without_marks_leave_their_groups_unknown() -> None:
    (row,) = judge_groups(job(marks={0: Missing("no probe in this rank"), 1: Missing("no probe in this rank")}))
    assert (row.level, "no probe in this rank" in row.found) == (Level.UNKNOWN, True)
    assert judge_groups(job(marks={}))[0].level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("kind", "remote"), [("ext4", False), ("tmpfs", False), ("overlay", False), ("nfs4", True), ("fuse.sshfs", True), ("lustre", True)]
)
def test_a_run_directory_must_not_hang_with_the_network(kind: str, remote: bool) -> None:
    (row,) = machine.judge_run_dir(machine.Room(path="/tmp", file_system=kind, total_bytes=1 << 40, free_bytes=1 << 40))
    assert (row.level is Level.WARNING) == remote


@pytest.mark.parametrize(
    ("total", "free", "level"), [(64 << 20, 64 << 20, Level.WARNING), (8 << 30, 8 << 30, Level.OK), (8 << 30, 1 << 20, Level.WARNING)]
)
def test_little_shared_memory_is_told_with_the_way_to_more(total: int, free: int, level: Level) -> None:
    (row,) = machine.judge_shm(machine.Room(path="/dev/shm", file_system="tmpfs", total_bytes=total, free_bytes=free))
    assert row.level is level
    assert ("--shm-size" in row.fix) == (level is Level.WARNING)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"Slurm": (False, False)}, Level.OK),
        ({"Slurm": (True, True)}, Level.OK),
        ({"Slurm": (True, False)}, Level.WARNING),
        ({"Slurm": (False, True)}, Level.OK),
        ({"Kubernetes": (True, True)}, Level.OK),
    ],
)
def test_a_schedulers_commands_matter_inside_of_it(found: dict[str, tuple[bool, bool]], wanted: Level) -> None:
    assert machine.judge_schedulers(found)[0].level is wanted


@pytest.mark.parametrize(
    ("answer", "level"),
    [(Missing("no NVIDIA driver"), Level.OK), (0, Level.OK), (9, Level.WARNING), (999, Level.CRITICAL), (Missing("x"), Level.UNKNOWN)],
)
def test_what_nvml_answers_is_told(answer: int | Missing, level: Level) -> None:
    assert machine.judge_gpus(answer)[0].level is level


def test_a_check_that_hangs_or_raises_does_not_take_the_others_along() -> None:
    def refuses(_: Subject) -> None:
        raise PermissionError(13, "Permission denied")

    checks = (
        Check(name="hangs", look=lambda _: threading.Event().wait(), judge=lambda *_: (), deadline_s=0.1),
        Check(name="raises", look=refuses, judge=lambda *_: ()),
        Check(name="well", look=lambda _: 1, judge=lambda *_: (Row("well", Level.OK, ""),)),
    )
    rows = levels(examine(HERE, checks))
    assert rows == {"hangs": Level.UNKNOWN, "raises": Level.UNKNOWN, "well": Level.OK}


def test_every_check_has_a_deadline_and_a_name_of_its_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(0 < check.deadline_s <= 62 for check in CHECKS)


def command(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **more}
    return subprocess.run(
        [sys.executable, "-m", "rankpatrol", "doctor", *words], capture_output=True, text=True, timeout=90, check=False, env=env
    )


@pytest.mark.timeout(100)
def test_the_command_says_it_all_in_lines_and_in_one_document(tmp_path: Path) -> None:
    plain = command("--python", "/usr/bin/true")
    assert plain.returncode == 2
    assert "bad       python" in plain.stdout
    assert "→ Name the training's interpreter" in plain.stdout
    assert "off by: --no-probe" in plain.stdout
    document = json.loads(command("--json", "--python", "/usr/bin/true").stdout)
    assert document["exit_code"] == 2
    assert {"name", "level", "found", "fix"} == set(document["rows"][0])
    assert document["touched"]


@pytest.mark.timeout(60)
def test_a_running_job_is_examined_with_its_own_python_and_environment(tmp_path: Path) -> None:
    with running(tmp_path, launcher=(str(LAUNCHER), "2", str(TRAINING), "8", "well")) as job:
        job.wait_for("attempt_started")
        done = job.type("doctor", "job", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert "(the job's own)" in rows["python"]["found"]
    assert rows["groups"]["found"] == "no rank has made a process group yet"


def test_a_folder_that_is_no_job_is_bad_input(tmp_path: Path) -> None:
    done = command(str(tmp_path))
    assert (done.returncode, "is not a job directory" in done.stderr) == (65, True)


def test_a_pause_of_all_jobs_is_told_with_its_end() -> None:
    assert machine.judge_pause(None)[0].level is Level.OK
    (row,) = machine.judge_pause(Pause(since_unix_s=1.8e9, by="ada@node1", why="maintenance", scope="machine"))
    assert row.level is Level.WARNING
    assert "by ada@node1 (maintenance)" in row.found
    assert "rankpatrol unpause" in row.fix
