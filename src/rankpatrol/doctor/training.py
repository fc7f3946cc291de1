"""The training's own Python and torch: which version, and which of the surfaces that rankpatrol reads it has."""

import re
from typing import TypeVar

import msgspec

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing, Record
from rankpatrol.doctor.rows import Level, Row
from rankpatrol.doctor.subject import Subject
from rankpatrol.system.command import run

PYTHON_S, TORCH_S = 10.0, 60.0
OLDEST_PYTHON = (3, 8)
Told = TypeVar("Told", bound=Record)

# Both run in the training's Python, which may be old: standard library only, one JSON line.
_ASK_PYTHON = """
import json, sys
told = {"version": list(sys.version_info[:3]), "executable": sys.executable, "torch": None}
try:
    from importlib.metadata import version
    told["torch"] = version("torch")
except Exception:
    pass
print(json.dumps(told))
"""
_ASK_TORCH = """
import json, os, torch, torch.distributed as dist, torch.multiprocessing as mp, torch.optim.optimizer as optimizer
c10d = getattr(torch._C, "_distributed_c10d", None)
wanted = ("_WorkerServer", "_dump_fr_trace_json", "_dump_nccl_trace_json", "_dump_nccl_trace", "_register_handler")
has = [name for name in wanted if hasattr(c10d, name)]
has += [name for name in ("register_optimizer_step_post_hook",) if hasattr(optimizer, name)]
has += [name for name in ("_set_thread_name",) if hasattr(mp, name)]
has += [name for name in ("_dynamo/callback.py",) if os.path.exists(os.path.join(os.path.dirname(torch.__file__), name))]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "distributed": dist.is_available(), "has": has}))
"""


class PythonFacts(Record, frozen=True, kw_only=True):
    """What the interpreter says of itself. `torch`: the version that is installed, not imported; `startup`: what it printed to stderr."""

    version: tuple[int, int, int]
    executable: str
    torch: str | None
    startup: str = ""


class TorchFacts(Record, frozen=True, kw_only=True):
    """What torch says of itself when it is imported. `has`: the names of c10d that rankpatrol uses and this build has."""

    version: str
    cuda: str | None
    distributed: bool
    has: tuple[str, ...]


class Surface(Record, frozen=True):
    """One name of torch's that rankpatrol uses: what is not told where it is not there."""

    name: str
    since: str
    without: str


# Held against the recorded surfaces of 2.0 to 2.13 by a test.
SURFACES = (
    Surface("register_optimizer_step_post_hook", "2.0", "steps are not counted by the probe: they are read from logs"),
    Surface("_dynamo/callback.py", "2.3", "compilations are not marked, and optimizer steps not counted once torch.compile is used"),
    Surface("_set_thread_name", "2.5", "loader processes bear no name: they are known by their stacks alone, and not ended when stuck"),
    Surface("_register_handler", "2.10", "the line of code of a skipped collective is only told by NCCL's own recorder"),
)


class Recorder(Record, frozen=True):
    """How many collectives the flight recorder keeps where nobody says so, from this version on; None where that was not looked up."""

    since: tuple[int, int]
    entries: int | None
    dumps_at_timeout: bool | None


# ProcessGroupNCCL.cpp and FlightRecorder.hpp of each version; 2.7 and 2.8 were not looked at.
RECORDERS = (
    Recorder((0, 0), None, dumps_at_timeout=None),
    Recorder((2, 3), 0, dumps_at_timeout=False),
    Recorder((2, 7), None, dumps_at_timeout=None),
    Recorder((2, 9), 2000, dumps_at_timeout=True),
)


def ask_python(subject: Subject) -> PythonFacts | Missing:
    """Start the interpreter once, as a training would."""
    answer = _ask(subject, _ASK_PYTHON, PYTHON_S)
    if isinstance(answer, Missing):
        return answer
    text, errors = answer
    told = _decoded(text, PythonFacts)
    return told if isinstance(told, Missing) else msgspec.structs.replace(told, startup=errors[-2000:])


def ask_torch(subject: Subject) -> TorchFacts | Missing:
    """Import torch once, as a training would."""
    answer = _ask(subject, _ASK_TORCH, TORCH_S)
    return answer if isinstance(answer, Missing) else _decoded(answer[0], TorchFacts)


def judge_python(facts: PythonFacts | Missing, subject: Subject) -> tuple[Row, ...]:
    """Old enough to know us, and starts without complaint."""
    if isinstance(facts, Missing):
        return (Row("python", Level.CRITICAL, facts.reason, "Name the training's interpreter: rankpatrol doctor --python PATH"),)
    version = ".".join(map(str, facts.version))
    rows = [Row("python", Level.OK, f"{facts.executable} is Python {version} ({subject.python_by})")]
    if facts.version[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        rows = [
            Row(
                "python",
                Level.CRITICAL,
                f"{facts.executable} is Python {version}: the shim needs {oldest}",
                f"Train with Python {oldest} or later.",
            )
        ]
    if "sitecustomize" in facts.startup:
        problem = facts.startup.strip().splitlines()[-1]
        rows.append(
            Row(
                "sitecustomize",
                Level.WARNING,
                f"the environment's own sitecustomize fails: {problem}",
                "Mend or remove it; the probe starts all the same.",
            )
        )
    if facts.torch is None:
        rows.append(
            Row(
                "torch",
                Level.WARNING,
                f"{facts.executable} has no torch",
                "Activate the training's environment, or: rankpatrol doctor --python PATH",
            )
        )
    return tuple(rows)


def judge_torch(facts: TorchFacts | Missing, environment: dict[str, str]) -> tuple[Row, ...]:
    """What can be read of ranks that run this torch."""
    if isinstance(facts, Missing):
        # That there is no torch is said by the Python's row already.
        absent = "No module named 'torch'" in facts.reason
        return (
            ()
            if absent
            else (Row("torch", Level.UNKNOWN, f"torch cannot be imported: {facts.reason}", "Does `python -c 'import torch'` work?"),)
        )
    kind = f"CUDA {facts.cuda}" if facts.cuda else "CPU"
    rows = [Row("torch", Level.OK, f"torch {facts.version} ({kind})")]
    if not facts.distributed:
        return (Row("torch", Level.CRITICAL, f"torch {facts.version} was built without torch.distributed", "Install a build that has it."),)
    rows += [_server_row(facts), _recorder_row(facts, environment), *_lacking(facts)]
    return tuple(rows)


def version_of(text: str) -> tuple[int, int] | None:
    """Major and minor of a version such as `2.13.0+cu128` or `2.1.0a0+git1234`."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def recorder_of(version: tuple[int, int] | None) -> Recorder:
    """The row of the version; of one that cannot be read, that nothing is known."""
    return RECORDERS[0] if version is None else [row for row in RECORDERS if row.since <= version][-1]


def _server_row(facts: TorchFacts) -> Row:
    if "_WorkerServer" not in facts.has:
        why = "flight recordings cannot be read from outside: who skipped a collective is then not told from who waits"
        return Row(
            "worker-server",
            Level.WARNING,
            f"torch {facts.version} has no worker server: {why}",
            "Stacks and /proc still name ranks. Newer versions have it.",
        )
    dumps = [name for name in facts.has if name.startswith("_dump")]
    if not dumps:
        return Row(
            "worker-server",
            Level.WARNING,
            f"torch {facts.version} has a worker server and no flight recorder to read",
            "Newer versions have one.",
        )
    return Row("worker-server", Level.OK, "flight recordings can be read from outside, also of a rank that holds the GIL")


def _lacking(facts: TorchFacts) -> list[Row]:
    told = [f"{each.without} (torch {each.since} has {each.name})" for each in SURFACES if each.name not in facts.has]
    return [Row("torch-surface", Level.HINT, f"torch {facts.version}: {why}", "Newer versions have it; all else works.") for why in told]


def _recorder_row(facts: TorchFacts, environment: dict[str, str]) -> Row:
    """ProcessGroupNCCL reads the older name alone, the recorder itself the newer one first."""
    row = recorder_of(version_of(facts.version))
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        text = environment.get(name, "")
        if text.isdigit():
            level = Level.OK if int(text) else Level.WARNING
            return Row("flight-recorder", level, f"{name}={text}", "" if int(text) else f"Set {name}=2000, or leave it out.")
    if row.entries is None:
        return Row(
            "flight-recorder",
            Level.UNKNOWN,
            f"whether torch {facts.version} records by itself is not known",
            "To be sure: TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
        )
    if row.entries == 0:
        return Row(
            "flight-recorder",
            Level.WARNING,
            f"torch {facts.version} records no collectives unless told to",
            "Set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 for the training.",
        )
    return Row("flight-recorder", Level.OK, f"torch {facts.version} keeps the last {row.entries} collectives of a rank by itself")


def _ask(subject: Subject, code: str, deadline_s: float) -> tuple[bytes, str] | Missing:
    if isinstance(subject.python, Missing):
        return subject.python
    try:
        done = run([subject.python, "-c", code], deadline_s=deadline_s, environment=subject.environment)
    except CommandFailed as problem:
        return Missing(str(problem))
    errors = done.stderr.decode(errors="replace")
    if done.exit_code != 0:
        last = errors.strip().splitlines()[-1:] or [f"it ended with {done.exit_code}"]
        return Missing(f"{subject.python}: {last[0]}")
    return done.stdout.strip().rpartition(b"\n")[2], errors


def _decoded(line: bytes, kind: type[Told]) -> Told | Missing:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as problem:
        return Missing(f"its answer cannot be read: {problem}")
