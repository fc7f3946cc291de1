"""What the tests of checkpoints share: a clock that stands, and ways to look into zip files and to build them anew."""

import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankpatrol.checkpoints.report import CheckpointReport

Check = Callable[[bytes], CheckpointReport]


def every_dtype() -> dict[str, Any]:
    import torch

    with warnings.catch_warnings(action="ignore"):
        quantised = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
    shared = torch.arange(10.0)
    return {
        "shared": (shared, shared[2:5]),
        "empty": torch.empty(0),
        "complex": torch.ones(2, dtype=torch.complex64),
        "quantised": quantised,
        "fp8": torch.ones(3).to(torch.float8_e4m3fn),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(3, device="meta"),
        "raw": torch.ones(5).untyped_storage(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        **{
            name: torch.ones(3, dtype=getattr(torch, name))
            for name in ("bfloat16", "float16", "float64", "uint16", "uint32", "uint64", "int8", "int16", "int64", "bool", "complex128")
        },
    }


class StandingClock:
    """A clock that tests set."""

    def __init__(self, unix_s: float) -> None:
        self.now_unix_s = unix_s

    def mono_s(self) -> float:
        return self.now_unix_s

    def unix_s(self) -> float:
        return self.now_unix_s


def ranges(path: Path) -> dict[str, tuple[int, int]]:
    """Where each member's bytes lie, by the standard library's reading."""
    places = {}
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            header = data[member.header_offset : member.header_offset + 30]
            start = member.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            places[member.filename.partition("/")[2]] = (start, start + member.file_size)
    return places


def rebuilt(path: Path, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The same zip file with right checksums, after `change` replaced or (None) removed members."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(out, "w") as copy:
        for member in archive.infolist():
            data = change(member.filename.partition("/")[2], archive.read(member))
            if data is not None:
                copy.writestr(member.filename, data)
    return out.getvalue()
