"""NaN, infinities and all zeros in a checkpoint's tensors: whole files may still hold a training that broke before the save."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Final

from rankpatrol.checkpoints.dcp_metadata import Plan, plan_beside
from rankpatrol.checkpoints.opened import OpenedFile
from rankpatrol.checkpoints.report import Judgement, corrupt, unknown
from rankpatrol.checkpoints.safetensors_file import Header, read_header
from rankpatrol.checkpoints.torch_inside import float_storages
from rankpatrol.core.records import Record

_NOT_SEARCHED: Final = frozenset({"torch_legacy"})
_AT_ONCE_BYTES: Final = 32 << 20
# Width, and the mask of an exponent that is all ones: NaN or infinity (IEEE 754; bfloat16 is the upper half of a float32).
_FORMS: Final = {
    "F64": (8, 0x7FF0000000000000), "F32": (4, 0x7F800000), "F16": (2, 0x7C00), "BF16": (2, 0x7F80),
}  # fmt: skip


class Floats(Record, frozen=True):
    """One range of floating-point numbers."""

    key: str
    form: str
    start_bytes: int
    length_bytes: int


def odd_numbers(file: OpenedFile, layout: str) -> Judgement | None:
    """Damage where a number is NaN or infinite, unknown where every tensor of a file is zero; None where nothing is odd."""
    if layout in _NOT_SEARCHED:
        return unknown("was not searched for NaN: that cannot be done in its layout")
    if importlib.util.find_spec("numpy") is None:
        return unknown("was not searched for NaN: that needs numpy (pip install numpy)")
    zeros = seen = 0
    found = _FLOATS[layout](file) if layout in _FLOATS else iter(())
    for floats in (one for one in found if one.length_bytes):
        odd, zero = _scan(file, floats)
        if odd is not None:
            said = f"holds a NaN or an infinity in {floats.key!a}, at byte {odd}: the training had diverged, or the memory was damaged"
            return corrupt(said, key=floats.key, offset_bytes=odd)
        seen += 1
        zeros += zero
    if seen and zeros == seen:
        return unknown(f"holds nothing but zeros in all its {seen} tensors of floating-point numbers")
    return None


def _in_safetensors(file: OpenedFile) -> Iterator[Floats]:
    header = read_header(file)
    for tensor in header.tensors if isinstance(header, Header) else ():
        if tensor.dtype in _FORMS and isinstance(header, Header):
            start = header.data_start_bytes + tensor.start_bytes
            yield Floats(tensor.name, tensor.dtype, start, tensor.end_bytes - tensor.start_bytes)


def _in_torch_zip(file: OpenedFile) -> Iterator[Floats]:
    for key, (form, start, length) in float_storages(file).items():
        yield Floats(key, form, start, length)


def _in_dcp_shard(file: OpenedFile) -> Iterator[Floats]:
    plan = plan_beside(file.path)
    for stored in plan.stored if isinstance(plan, Plan) else ():
        if stored.file == file.path.name and not stored.packed:
            for form, start, length in float_storages(file.part(stored.start_bytes, stored.length_bytes)).values():
                yield Floats(stored.name, form, stored.start_bytes + start, length)


_FLOATS: Final[dict[str, Callable[[OpenedFile], Iterator[Floats]]]] = {
    "safetensors": _in_safetensors,
    "torch_zip": _in_torch_zip,
    "lightning": _in_torch_zip,
    "dcp_shard": _in_dcp_shard,
}


def _scan(file: OpenedFile, floats: Floats) -> tuple[int | None, bool]:
    """The byte of the first odd number, and whether all are zero."""
    import numpy as np  # ruff: ignore[PLC0415] - an optional package, asked for by this option alone

    width, mask = _FORMS[floats.form]
    all_zero = True
    for at in range(0, floats.length_bytes, _AT_ONCE_BYTES):
        data = file.read_at(floats.start_bytes + at, min(_AT_ONCE_BYTES, floats.length_bytes - at) // width * width)
        numbers: Any = np.frombuffer(data, dtype=f"<u{width}")
        odd = (numbers & mask) == mask
        if odd.any():
            return floats.start_bytes + at + int(odd.argmax()) * width, False
        all_zero = all_zero and not numbers.any()
    return None, all_zero
