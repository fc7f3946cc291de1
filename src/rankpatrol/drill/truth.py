"""What the injector did, in its own file, apart from anything that the patrol reads."""

from pathlib import Path

import msgspec

from rankpatrol.core.records import Missing, Record
from rankpatrol.system.files import write_atomic


class Truth(Record, frozen=True, kw_only=True):
    """Which rank was struck before which step. `at_unix_s` is None where the onset shows in the training's steps only.

    `pids` are the processes that stand still: the rank's own, or its loader processes. `until_unix_s` is when a silence was over, when
    the last process of the job was gone, or, of a hang, until when nobody may act. `others` are to blame as well. `harmed` names
    strangers' processes that did not survive.
    """

    rank: int | None = None
    step: int | None = None
    at_unix_s: float | None = None
    until_unix_s: float | None = None
    pids: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    harmed: tuple[str, ...] = ()


def read_truth(path: Path) -> Truth | Missing:
    """The injector's word, or why there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Truth)
    except FileNotFoundError:
        return Missing("the fault never struck")
    except (OSError, msgspec.MsgspecError) as problem:
        return Missing(f"the truth file cannot be read: {problem}")


def write_truth(path: Path, truth: Truth) -> None:
    """Replace the truth file in one step."""
    write_atomic(path, msgspec.json.encode(truth) + b"\n")
