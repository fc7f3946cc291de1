"""Which Python frames mean which kind of waiting. One table, measured on torch 2.13; a new meaning is a new row.

Names are matched without their class (`_MultiProcessingDataLoaderIter._get_data` is `_get_data`): only Python 3.11 and later show it.
"""

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Frame, ThreadStack


class Row(Record, frozen=True):
    """Frames of this file (matched at its end) and of these functions (empty: any) mean this kind."""

    file_end: str
    functions: frozenset[str]
    kind: WaitKind


def _row(file_end: str, functions: str, kind: WaitKind) -> Row:
    return Row(file_end, frozenset(functions.split()), kind)


ROWS = (
    _row(
        "torch/distributed/distributed_c10d.py",
        "all_reduce all_reduce_coalesced all_gather all_gather_into_tensor all_gather_object all_gather_coalesced all_to_all "
        "all_to_all_single barrier broadcast broadcast_object_list gather gather_object reduce reduce_scatter reduce_scatter_tensor "
        "scatter scatter_object_list monitored_barrier",
        WaitKind.COLLECTIVE,
    ),
    _row("torch/distributed/distributed_c10d.py", "send recv batch_isend_irecv", WaitKind.POINT_TO_POINT),
    _row("torch/distributed/distributed_c10d.py", "init_process_group new_group _new_group_with_tag", WaitKind.START),
    _row("torch/distributed/rendezvous.py", "", WaitKind.START),
    _row("torch/autograd/graph.py", "_engine_run_backward", WaitKind.BACKWARD),
    _row("torch/utils/data/dataloader.py", "_try_get_data _get_data", WaitKind.DATA),
    _row("torch/utils/data/_utils/fetch.py", "fetch", WaitKind.LOADING),
    _row("torch/distributed/checkpoint/state_dict_saver.py", "", WaitKind.CHECKPOINT),
    _row("torch/distributed/checkpoint/state_dict_loader.py", "", WaitKind.CHECKPOINT),
    _row("torch/serialization.py", "", WaitKind.CHECKPOINT),
    _row("torch/_dynamo/eval_frame.py", "", WaitKind.COMPILE),
    _row("torch/_dynamo/convert_frame.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/compile_fx.py", "", WaitKind.COMPILE),
    _row("importlib/_bootstrap>", "", WaitKind.START),
    _row("<frozen importlib._bootstrap>", "", WaitKind.START),
)

# Frames between a wait and its meaning that carry none themselves.
_PLUMBING = ("torch/distributed/c10d_logger.py", "torch/utils/_contextlib.py")
_LIBRARY = ("/rankpatrol/launch/probe/", "/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "<string>")


def plain_name(frame: Frame) -> str:
    """The function's name without its class."""
    return frame.name.rpartition(".")[2]


def is_users(frame: Frame) -> bool:
    """True for a frame of the user's own code: neither torch nor the standard library nor another installed package."""
    return not any(part in frame.file for part in _LIBRARY)


def meaning(thread: ThreadStack) -> tuple[WaitKind, Frame] | None:
    """The innermost frame that a row knows, and its kind; None where the stack reaches user code or its end before one.

    User code stands between: whoever sleeps in a hook that backward called is in the hook, not in backward.
    """
    for frame in thread.frames:
        if any(frame.file.endswith(end) for end in _PLUMBING):
            continue
        for row in ROWS:
            if frame.file.endswith(row.file_end) and (not row.functions or plain_name(frame) in row.functions):
                return row.kind, frame
        if is_users(frame):
            return None
    return None


def users_frame(thread: ThreadStack) -> Frame | None:
    """The innermost frame of the user's own code: the line to name."""
    return next((frame for frame in thread.frames if is_users(frame)), None)


def is_inside(thread: ThreadStack, kind: WaitKind) -> bool:
    """True where any frame of the stack, however deep below user code, has this meaning."""
    rows = [row for row in ROWS if row.kind is kind]
    return any(
        frame.file.endswith(row.file_end) and (not row.functions or plain_name(frame) in row.functions)
        for frame in thread.frames
        for row in rows
    )


def say_frame(frame: Frame) -> str:
    """A frame as a sentence names it: `load_block (data.py:41)`."""
    return f"{plain_name(frame)} ({frame.file.rpartition('/')[2]}:{frame.line})"
