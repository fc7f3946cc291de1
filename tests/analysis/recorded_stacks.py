"""Recorded ranks (data/stacks) as processes for a renderer, with the answers that their stacks alone allow."""

import scenes
from rankpatrol.core.snapshot import Stack
from stack_texts import F, P

LOADER = "data_loader_worker_stuck"
ANSWERS = {
    "ar_missing": [("unknown", (3,))],
    "barrier": [("unknown", (3,))],
    "ckpt": [("checkpoint_io_slow", None)],
    "compile": [("compile_or_jit", None)],
    "compute": [("unknown", None)],
    "dl_fifo": [(LOADER, (3,))],
    "dl_inproc_fifo": [("unknown", (3,))],
    "dl_pyloop": [(LOADER, (3,))],
    "exc_swallow": [("unknown", (3,))],
    "gil_regex": [("unknown", None), ("unknown", (3,))],
    "optim": [("unknown", None)],
    "p2p": [("unknown", (0,)), ("p2p_mismatch", (0,))],
    "store": [("unknown", None)],
}


def processes(scenario):
    """The main thread of each rank of a recording."""
    found = []
    for sample in scenes.recorded(scenario).ranks:
        thread = sample.stack.main_thread() if isinstance(sample.stack, Stack) else None
        frames = [F(frame.name, frame.file, frame.line) for frame in thread.frames] if thread else []
        found.append(P(sample.rank, sample.pid, frames, idle=not thread.active if thread else True))
    return found
