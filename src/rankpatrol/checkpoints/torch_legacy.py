"""What torch.save wrote before torch 1.6, and still does on request: pickles in a row, then raw storages. It has no checksums."""

from rankpatrol.checkpoints.opened import OpenedFile
from rankpatrol.checkpoints.report import CheckpointCause, CheckpointVerdict, Judgement

NAME = "torch_legacy"
# torch.serialization.MAGIC_NUMBER as a pickle: LONG1 of 10 bytes, then STOP.
_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_HEAD_BYTES = 32


def matches(file: OpenedFile) -> bool:
    """Whether the file starts with the magic number's pickle."""
    head = file.read_at(0, min(_HEAD_BYTES, file.size_bytes))
    return head.startswith(b"\x80") and _MAGIC in head


def verify(file: OpenedFile, now_unix_s: float) -> Judgement:  # ruff: ignore[ARG001] - every layout is asked alike
    """Always unknown: this layout is recognised, not checked."""
    said = f"({file.size_bytes} bytes) is in torch's old layout, which has no checksums and is not checked here: content unknown"
    return Judgement(verdict=CheckpointVerdict.UNKNOWN, cause=CheckpointCause.UNKNOWN, said=said)
