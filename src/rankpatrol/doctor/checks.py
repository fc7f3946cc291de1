"""The registry: what is looked at, side by side, each within its own time. A new check is a new row."""

import threading
import time
from collections.abc import Callable
from typing import Any

from rankpatrol.core.records import Missing, Record
from rankpatrol.doctor import binding, kubernetes, machine, tracing, training
from rankpatrol.doctor.groups import judge_groups
from rankpatrol.doctor.rows import Level, Row
from rankpatrol.doctor.subject import Subject
from rankpatrol.doctor.variables import judge_variables
from rankpatrol.launch.pauses import machine_pause


class Check(Record, frozen=True, kw_only=True):
    """One check: `look` touches the machine and may hang, `judge` is pure and never sees that it did."""

    name: str
    look: Callable[[Subject], Any]
    judge: Callable[[Any, Subject], tuple[Row, ...]]
    deadline_s: float = 5.0


def _torch_and_variables(facts: training.TorchFacts | Missing, subject: Subject) -> tuple[Row, ...]:
    version, cuda = (None, False) if isinstance(facts, Missing) else (training.version_of(facts.version), facts.cuda is not None)
    return (*training.judge_torch(facts, subject.environment), *judge_variables(subject.environment, version, cuda=cuda))


CHECKS = (
    Check(name="python", look=training.ask_python, judge=training.judge_python, deadline_s=training.PYTHON_S + 2),
    Check(name="torch", look=training.ask_torch, judge=_torch_and_variables, deadline_s=training.TORCH_S + 2),
    Check(name="shim", look=lambda _: machine.look_at_shim(), judge=lambda seen, _: machine.judge_shim(seen)),
    Check(name="tracing", look=lambda _: tracing.look_at_rules(), judge=lambda seen, _: tracing.judge_rules(seen)),
    Check(name="stacks", look=lambda _: tracing.look_at_child(), judge=lambda seen, _: tracing.judge_child(seen), deadline_s=25.0),
    Check(name="kernel", look=lambda _: machine.look_at_kernel(), judge=lambda seen, _: machine.judge_kernel(seen)),
    Check(name="dev-shm", look=lambda _: machine.look_at_shm(), judge=lambda seen, _: machine.judge_shm(seen)),
    Check(name="run-directory", look=lambda _: machine.look_at_run_dir(), judge=lambda seen, _: machine.judge_run_dir(seen)),
    Check(name="state-directory", look=lambda _: machine.look_at_state_dir(), judge=lambda seen, _: machine.judge_state_dir(seen)),
    Check(name="pause", look=lambda _: machine_pause(), judge=lambda seen, _: machine.judge_pause(seen)),
    Check(name="kernel-log", look=lambda _: machine.look_at_kernel_log(), judge=lambda seen, _: machine.judge_kernel_log(seen)),
    Check(name="clock", look=lambda _: machine.look_at_clock(), judge=lambda seen, _: machine.judge_clock(seen)),
    Check(
        name="scheduler",
        look=lambda subject: machine.look_at_schedulers(subject.environment),
        judge=lambda seen, _: machine.judge_schedulers(seen),
    ),
    Check(
        name="kubernetes",
        look=lambda subject: kubernetes.look_at_kubernetes(subject.environment),
        judge=lambda seen, _: kubernetes.judge_kubernetes(seen),
        deadline_s=kubernetes.LOOK_S,
    ),
    Check(name="gpus", look=lambda _: machine.look_at_gpus(), judge=lambda seen, _: machine.judge_gpus(seen), deadline_s=20.0),
    Check(name="binding", look=lambda subject: binding.look(subject.environment), judge=lambda seen, _: binding.judge_binding(seen)),
    Check(name="groups", look=lambda subject: subject.job, judge=lambda job, _: () if job is None else judge_groups(job)),
)


def examine(subject: Subject, checks: tuple[Check, ...] = CHECKS) -> tuple[Row, ...]:
    """All checks' rows, in the registry's order. One that hangs or fails is a row that says so; its thread is left behind."""
    seen: dict[str, Any] = {}
    began_s = time.monotonic()
    threads = [threading.Thread(target=_look, args=(check, subject, seen), daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    for check, thread in zip(checks, threads, strict=True):
        thread.join(max(0.0, began_s + check.deadline_s - time.monotonic()))
    return tuple(row for check in checks for row in _rows(check, subject, seen))


def _look(check: Check, subject: Subject, seen: dict[str, Any]) -> None:
    try:
        seen[check.name] = check.look(subject)
    except Exception as problem:  # ruff: ignore[BLE001] - one check that fails must not take the others along
        seen[check.name] = problem


def _rows(check: Check, subject: Subject, seen: dict[str, Any]) -> tuple[Row, ...]:
    if check.name not in seen:
        return (
            Row(
                check.name,
                Level.UNKNOWN,
                f"was not done after {check.deadline_s:g} s",
                "Something it looks at hangs, or this machine is very busy.",
            ),
        )
    found = seen[check.name]
    if isinstance(found, Exception):
        return (Row(check.name, Level.UNKNOWN, f"could not be looked at: {found}", "Report this as a bug, with this line."),)
    return check.judge(found, subject)
