"""One safetensors file: eight bytes with the header's length, the header in JSON, then the tensors' bytes. It has no checksums.

The format is described at github.com/huggingface/safetensors (README, "Format"); its reader refuses gaps and bytes left over.
"""

import math
from typing import Any, Final

import msgspec

from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.report import Judgement, Look, corrupt, cut_short, good, say_since, unknown
from rankpatrol.core.records import Record

NAME = "safetensors"
# The limit of the library's own reader.
_MOST_HEADER_BYTES: Final = 100_000_000
_LENGTH_BYTES: Final = 8
# Bits an element takes. See safetensors/src/tensor.rs, Dtype.
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class Tensor(Record, frozen=True):
    """One tensor of the header; offsets count from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start_bytes: int
    end_bytes: int


class Header(Record, frozen=True):
    """All tensors in the order of their bytes, and where the first byte of them is in the file."""

    tensors: tuple[Tensor, ...]
    data_start_bytes: int


def matches(file: Readable) -> bool:
    """Whether it starts with a length and a JSON object, or bears the name: its start may be damaged or not yet written."""
    if file.path.suffix == ".safetensors":
        return True
    head = file.read_at(0, min(_LENGTH_BYTES + 2, file.size_bytes))
    return len(head) > _LENGTH_BYTES and head[_LENGTH_BYTES:].startswith(b'{"') and 2 <= _length(head) <= _MOST_HEADER_BYTES


def verify(file: Readable, look: Look) -> Judgement:
    """The header, each tensor's place and length, and the file's length. Without checksums the content itself stays unknown."""
    header = read_header(file)
    if isinstance(header, Judgement):
        return _with_age(header, file, look)
    end = header.tensors[-1].end_bytes if header.tensors else 0
    there = file.size_bytes - header.data_start_bytes
    if there < end:
        first = next(tensor for tensor in header.tensors if tensor.end_bytes > there)
        whole = sum(tensor.end_bytes <= there for tensor in header.tensors)
        said = (
            f"ends at byte {file.size_bytes} in {first.name!a}, {end - there} bytes before its end "
            f"({whole} of {len(header.tensors)} tensors are whole)"
        )
        return _with_age(cut_short(said, key=first.name, offset_bytes=file.size_bytes), file, look)
    if there > end:
        at = header.data_start_bytes + end
        return corrupt(f"holds {there - end} bytes more than its tensors need, from byte {at} on", offset_bytes=at)
    return good(f"has its structure ok ({len(header.tensors)} tensors, {end} bytes), content unknown (safetensors has no checksums)")


def read_header(file: Readable) -> Header | Judgement:
    """The header, or what is wrong with it."""
    if file.size_bytes < _LENGTH_BYTES:
        return cut_short(f"ends at byte {file.size_bytes}, inside the length of its header", offset_bytes=file.size_bytes)
    length = _length(file.read_at(0, _LENGTH_BYTES))
    if length > _MOST_HEADER_BYTES:
        return corrupt(f"is damaged: its header would have {length} bytes, more than any reader takes", offset_bytes=0)
    if _LENGTH_BYTES + length > file.size_bytes:
        said = f"ends at byte {file.size_bytes}, inside its header, which takes bytes 8 to {_LENGTH_BYTES + length}"
        return cut_short(said, offset_bytes=file.size_bytes)
    return _parsed(file.read_at(_LENGTH_BYTES, length))


def _parsed(data: bytes) -> Header | Judgement:
    try:
        described = msgspec.json.decode(data.rstrip(b" "))
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        if not data.strip(b"\0"):
            return cut_short(f"has zeros for a header (bytes 8 to {_LENGTH_BYTES + len(data)}): it was never written", offset_bytes=8)
        return corrupt(f"is damaged: its header is no JSON ({problem})", offset_bytes=_LENGTH_BYTES)
    if not isinstance(described, dict):
        return corrupt("is damaged: its header is no JSON object", offset_bytes=_LENGTH_BYTES)
    tensors: list[Tensor] = []
    for name, facts in described.items():
        if name == "__metadata__":
            continue
        tensor = _tensor(name, facts)
        if isinstance(tensor, Judgement):
            return tensor
        tensors.append(tensor)
    tensors.sort(key=lambda tensor: (tensor.start_bytes, tensor.end_bytes))
    return _gapless(tensors, _LENGTH_BYTES + len(data))


def _tensor(name: str, facts: Any) -> Tensor | Judgement:
    match facts:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            return corrupt(f"is damaged: its header does not place {name!a}", key=name, offset_bytes=_LENGTH_BYTES)
    if not all(isinstance(size, int) and size >= 0 for size in shape) or not 0 <= start <= end:
        return corrupt(f"is damaged: its header gives {name!a} an impossible shape or place", key=name, offset_bytes=_LENGTH_BYTES)
    if dtype not in _BITS:
        return unknown(f"holds {name!a} in the type {dtype!a}, which is not known here", key=name)
    needed = math.prod(shape) * _BITS[dtype] // 8
    if end - start != needed:
        said = f"is damaged: its header gives {name!a} {end - start} bytes where its shape needs {needed}"
        return corrupt(said, key=name, offset_bytes=_LENGTH_BYTES)
    return Tensor(name, dtype, tuple(shape), start, end)


def _gapless(tensors: list[Tensor], data_start: int) -> Header | Judgement:
    at = 0
    for tensor in tensors:
        if tensor.start_bytes != at:
            what = "a gap" if tensor.start_bytes > at else "an overlap"
            return corrupt(f"is damaged: its header leaves {what} before {tensor.name!a}", key=tensor.name, offset_bytes=data_start + at)
        at = tensor.end_bytes
    return Header(tuple(tensors), data_start)


def _length(head: bytes) -> int:
    return int.from_bytes(head[:_LENGTH_BYTES], "little")


def _with_age(judgement: Judgement, file: Readable, look: Look) -> Judgement:
    """What ends early may not be finished: its age tells."""
    if judgement.verdict != "incomplete":
        return judgement
    return msgspec.structs.replace(judgement, said=f"{judgement.said}; {say_since(look.now_unix_s - file.modified_unix_s)}")
