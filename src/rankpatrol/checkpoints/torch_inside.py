"""What a torch file says of itself besides tensors: steps, world sizes, versions. Read as inert values; nothing is unpickled."""

import struct
from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.inert_pickle import Named, Read, Thing, look_up, pairs_of, read_pickle
from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.pickled_storages import MOST_PICKLE_BYTES, walk
from rankpatrol.checkpoints.zip_directory import Damaged, Directory, data_offset, read_directory
from rankpatrol.core.records import Missing

_MOST_PICKLE_BYTES: Final = 16 << 20
_MOST_VALUES: Final = 200_000
_DEEPEST: Final = 8
_FLOATS: Final = {"FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16"}
# How a storage's class packs one number.
_FORMS: Final = {"FloatStorage": "<f", "DoubleStorage": "<d", "LongStorage": "<q", "IntStorage": "<i"}


class TorchInside:
    """The object of one torch file, and the bytes of its small tensors."""

    def __init__(self, value: object, places: dict[str, tuple[int, int]], file: Readable) -> None:
        self.value, self._places, self._file = value, places, file
        self._optimizer_step: int | None = None

    def at(self, *path: str) -> object:
        """What lies under these keys or attribute names; None where nothing does."""
        return look_up(self.value, *path)

    def number(self, *path: str) -> int | None:
        """The whole number under these keys; None where there is none."""
        found = self.at(*path)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def itself(self) -> int | None:
        """The whole number that the object itself is, as a number or a tensor of one."""
        return self._whole(self.value)

    def optimizer_step(self) -> int | None:
        """The highest `step` that any parameter's optimizer state tells, as a number or a tensor of one."""
        return self._optimizer_step

    def learn_optimizer_step(self) -> None:
        """Look for it, while the file is open."""
        self._optimizer_step = max(self._steps(), default=None)

    def _steps(self) -> Iterator[int]:
        waiting = [(self.value, 0)]
        seen: set[int] = set()
        while waiting and len(seen) < _MOST_VALUES:
            value, depth = waiting.pop()
            if id(value) in seen or depth > _DEEPEST:
                continue
            seen.add(id(value))
            if isinstance(value, list | tuple):
                waiting += [(item, depth + 1) for item in value]
            for key, item in pairs_of(value):
                if key == "step" and (step := self._whole(item)) is not None:
                    yield step
                waiting.append((item, depth + 1))

    def _whole(self, value: object) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        match value:
            case Thing(of=Named(_, "_rebuild_tensor_v2"), args=(Thing(args=("storage", Named(_, kind), str(key), *_)), int(at), size, *_)):
                pass
            case _:
                return None
        form = _FORMS.get(kind)
        place = self._places.get(f"data/{key}")
        if form is None or place is None or size not in {(), (1,)}:
            return None
        width = struct.calcsize(form)
        if (at + 1) * width > place[1]:
            return None
        number = struct.unpack(form, self._file.read_at(place[0] + at * width, width))[0]
        return int(number) if number == number // 1 and abs(number) < 1 << 53 else None


def inside_of(file: Readable) -> TorchInside | None:
    """What a torch zip file says; None where it is none, or too large to look through."""
    directory = read_directory(file)
    if not isinstance(directory, Directory) or not directory.members:
        return None
    places = _places(file, directory)
    start_bytes, size_bytes = places.get("data.pkl", (0, 0))
    if not 0 < size_bytes <= _MOST_PICKLE_BYTES:
        return None
    found = read_pickle(file.read_at(start_bytes, size_bytes))
    return TorchInside(found.value, places, file) if isinstance(found, Read) else None


def float_storages(file: Readable) -> dict[str, tuple[str, int, int]]:
    """Kind of number, start and length of every storage of floating-point numbers in a torch zip file."""
    directory = read_directory(file)
    if not isinstance(directory, Directory) or not directory.members:
        return {}
    places = _places(file, directory)
    start_bytes, size_bytes = places.get("data.pkl", (0, 0))
    if not 0 < size_bytes <= MOST_PICKLE_BYTES:
        return {}
    named = walk(file.read_at(start_bytes, size_bytes))
    found = {}
    for storage in () if isinstance(named, Missing) else named.storages:
        key = f"data/{storage.key}"
        if storage.kind in _FLOATS and key in places:
            found[key] = (_FLOATS[storage.kind], *places[key])
    return found


def _places(file: Readable, directory: Directory) -> dict[str, tuple[int, int]]:
    archive = directory.members[0].name.partition("/")[0]
    places: dict[str, tuple[int, int]] = {}
    for member in directory.members:
        start = data_offset(file, member, directory.start_bytes)
        if not isinstance(start, Damaged):
            places[member.name.removeprefix(f"{archive}/")] = (start, member.size_bytes)
    return places
