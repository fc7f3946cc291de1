"""torch's and NCCL's own debugging variables: which are off and would help, which are on and do harm. Pure: one table."""

from collections.abc import Callable, Mapping

from rankpatrol.core.records import Record
from rankpatrol.doctor.rows import Level, Row


class Variable(Record, frozen=True):
    """One variable: for which values (None: unset) of which versions it is worth a word, and which."""

    name: str
    worth_a_word: Callable[[str | None], bool]
    level: Level
    why: str
    fix: str
    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] = (1000, 0)
    cuda_only: bool = True


def _off(value: str | None) -> bool:
    return value is not None and value.lower() in {"0", "false", "no", "n", "off"}


def _off_or_unset(value: str | None) -> bool:
    return not value or _off(value)


def _on(value: str | None) -> bool:
    return bool(value) and not _off(value)


# Defaults by version: ProcessGroupNCCL.cpp (dump on timeout is on from 2.9; 2.7 and 2.8 were not looked at, and there it is told as off).
VARIABLES = (
    Variable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        _off_or_unset,
        Level.HINT,
        "a NCCL time-out leaves no flight recording on disk",
        "Set TORCH_NCCL_DUMP_ON_TIMEOUT=1.",
        since=(2, 2),
        before=(2, 9),
    ),
    Variable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT", _off, Level.HINT, "a NCCL time-out leaves no flight recording on disk", "Leave it out.", since=(2, 9)
    ),
    Variable(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        _off,
        Level.WARNING,
        "a NCCL error or time-out ends nobody: ranks wait for ever",
        "Leave it out.",
        since=(2, 2),
    ),
    Variable(
        "NCCL_ASYNC_ERROR_HANDLING", _off, Level.WARNING, "a NCCL error or time-out ends nobody: ranks wait for ever", "Leave it out."
    ),
    Variable(
        "TORCH_NCCL_ENABLE_MONITORING", _off, Level.HINT, "a NCCL watchdog that is itself stuck ends nobody", "Leave it out.", since=(2, 2)
    ),
    Variable(
        "NCCL_DEBUG",
        lambda value: not value,
        Level.HINT,
        "NCCL says nothing of what it cannot reach",
        "Set NCCL_DEBUG=WARN: it prints on errors alone.",
    ),
    Variable(
        "CUDA_LAUNCH_BLOCKING",
        _on,
        Level.WARNING,
        "every kernel is waited for: training is slow, and overlaps nothing",
        "Set it only to find a bug.",
    ),
    Variable(
        "TORCH_DISTRIBUTED_DEBUG",
        lambda value: (value or "").upper() == "DETAIL",
        Level.HINT,
        "every collective is compared before it runs: slow, and mismatches are named",
        "Set it only to find a bug.",
        cuda_only=False,
    ),
    Variable("PYTHONDONTWRITEBYTECODE", _on, Level.HINT, "every start compiles all it imports", "Leave it out.", cuda_only=False),
)


def judge_variables(environment: Mapping[str, str], version: tuple[int, int] | None, *, cuda: bool) -> tuple[Row, ...]:
    """A row for each variable that is worth a word; one that says so where none is."""
    seen = version or (999, 0)
    told = [
        Row(each.name, each.level, f"{_say(environment.get(each.name))}: {each.why}", each.fix)
        for each in VARIABLES
        if (cuda or not each.cuda_only) and each.since <= seen < each.before and each.worth_a_word(environment.get(each.name))
    ]
    return tuple(told) or (Row("variables", Level.OK, "none of torch's or NCCL's is set to do harm, or missing"),)


def _say(value: str | None) -> str:
    return "not set" if value is None else f"is {value!r}" if value else "is empty"
