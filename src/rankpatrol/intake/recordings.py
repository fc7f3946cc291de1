"""Flight recorder dumps from files: one a rank, pickle or JSON, plain or gzip, as torch names them or as a bundle holds them.

What cannot be read costs its own reason, and its rank is not taken for absent. Nothing in a dump is ever executed.
"""

import re
import stat
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Record
from rankpatrol.core.rings import Recordings, Ring
from rankpatrol.formats.rings import Calls, parse_ring
from rankpatrol.formats.safe_pickle import MOST_BYTES

# torch writes `<prefix><rank>` (comm_lib_trace_rank_3, nccl_trace_rank_3, whatever TORCH_FR_DUMP_TEMP_FILE says).
_NAMES = (
    re.compile(r"(?P<family>.*(?:^|/)ranks)/(?P<rank>\d{1,7})/flight_recorder(?P<suffix>\.json(?:\.gz)?)"),
    re.compile(r"(?P<family>.*rank[_-]?)(?P<rank>\d{1,7})(?P<suffix>\.(?:json|pickle|pkl|bin|dump)(?:\.gz)?|\.gz|)"),
    re.compile(r"(?P<family>.*\D)(?P<rank>\d{1,7})(?P<suffix>\.(?:json|pickle|pkl|bin|dump)(?:\.gz)?|\.gz|)"),
)
# A pickle of protocol 2 to 5 that begins with a dict; or JSON, of which a dump names its entries or its version early.
_PICKLE_HEAD = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\}", re.DOTALL)
_JSON_KEYS = re.compile(rb'"(?:entries|pg_config|pg_status|collective_seq_id)"\s*:')
_HEAD_BYTES = 4096
_MOST_FILES = 200_000


class _Named(Record, frozen=True):
    """A file with what its name tells: the set of dumps that it belongs to, and its rank."""

    path: Path
    family: tuple[str, ...]
    rank: int
    written_unix_s: float


def read_recordings(paths: Iterable[Path]) -> tuple[Recordings, dict[Path, str]]:
    """The recordings in these files and folders, and for each file that was not used the reason why.

    Of several sets of dumps, the one with the most readable ranks counts, and of equal ones the newest: dumps of two moments or two
    jobs are never laid side by side.
    """
    reasons: dict[Path, str] = {}
    named = [file for path in _files(paths) if (file := _named(path, reasons)) is not None]
    sets = sorted(_sets(named), key=_preference, reverse=True)
    best = Recordings(calls=(), rings={})
    chosen: list[_Named] = []
    for each in sets:
        if len(each) <= len(best.rings):
            break
        found = _read(each, reasons)
        if len(found.rings) > len(best.rings) or not chosen:
            best, chosen = found, each
    for file in named:
        if file not in chosen and file.path not in reasons:
            reasons[file.path] = f"it belongs to another set of dumps than {chosen[0].path.name}: give one set at a time"
    return best, reasons


def _preference(files: list[_Named]) -> tuple[int, int, bool, float]:
    """More ranks, then newer by ten minutes at least, then pickles: they alone hold lines of code."""
    newest_s = max(file.written_unix_s for file in files)
    return len(files), int(newest_s // 600), ".json" not in files[0].family[-1], newest_s


def looks_like_a_recording(path: Path) -> bool:
    """True for a file whose name carries a rank and that begins as a dump does. False for whatever cannot be read."""
    try:
        if rank_in_name(path) is None or not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return begins_like_a_recording(head)


def begins_like_a_recording(head: bytes) -> bool:
    """True for the first bytes of a dump; of a packed one, for what is packed in it."""
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return False
    return bool(_PICKLE_HEAD.match(head)) or (head.lstrip()[:1] == b"{" and bool(_JSON_KEYS.search(head)))


def rank_in_name(path: Path) -> int | None:
    """The rank that a dump's name carries: `nccl_trace_rank_3`, `rank3.json.gz`, `ranks/3/flight_recorder.json`."""
    found = _match(path)
    return int(found["rank"]) if found else None


def _match(path: Path) -> re.Match[str] | None:
    whole = path.as_posix()
    return next((found for name in _NAMES if (found := name.fullmatch(whole))), None)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are given; of folders those that look like dumps."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for count, inner in enumerate(sorted(path.rglob("*"))):
            if count >= _MOST_FILES:
                break
            if looks_like_a_recording(inner):
                yield inner


def _named(path: Path, reasons: dict[Path, str]) -> _Named | None:
    found = _match(path)
    if found is None:
        reasons[path] = "its name carries no rank: torch writes one file a rank, which ends in its number"
        return None
    try:
        seen = path.stat()
    except OSError as problem:
        reasons[path] = f"it cannot be read: {problem.strerror}"
        return None
    if not stat.S_ISREG(seen.st_mode):
        reasons[path] = "it is no regular file"
        return None
    folder, _, prefix = found["family"].rpartition("/")
    return _Named(path, (folder, prefix, found["suffix"]), int(found["rank"]), seen.st_mtime)


def _sets(named: list[_Named]) -> list[list[_Named]]:
    """Files of one naming are one set, from however many folders; where a rank comes twice, each folder is a set of its own."""
    families: dict[tuple[str, ...], list[_Named]] = defaultdict(list)
    for file in named:
        families[file.family[1:]].append(file)
    sets = []
    for files in families.values():
        if len({file.rank for file in files}) == len(files):
            sets.append(sorted(files, key=lambda file: file.rank))
            continue
        folders: dict[str, dict[int, _Named]] = defaultdict(dict)
        for file in files:
            folders[file.family[0]].setdefault(file.rank, file)
        sets += [[each[rank] for rank in sorted(each)] for each in folders.values()]
    return sets


def _read(files: list[_Named], reasons: dict[Path, str]) -> Recordings:
    calls = Calls()
    rings: dict[int, Ring] = {}
    unread: dict[int, str] = {}
    for file in files:
        try:
            ring = parse_ring(_content(file.path), calls)
            _check_rank(file, ring)
        except BadInput as problem:
            reasons[file.path] = unread[file.rank] = str(problem)
        except OSError as problem:
            reasons[file.path] = unread[file.rank] = f"it cannot be read: {problem.strerror}"
        else:
            rings[file.rank] = ring
    written = {file.rank: file.written_unix_s for file in files}
    return Recordings(calls=tuple(calls.known), rings=rings, written_unix_s=written, unread=unread)


def _check_rank(file: _Named, ring: Ring) -> None:
    if ring.rank is not None and ring.rank != file.rank:
        raise BadInput(f"it is named for rank {file.rank}, but says that it is of rank {ring.rank}")
    everyone = ring.members.get("default_pg")
    if everyone and file.rank not in everyone:
        raise BadInput(f"it is named for rank {file.rank}, but its job has ranks {min(everyone)} to {max(everyone)} alone")


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if data[:2] != b"\x1f\x8b":
        return data
    inflate = zlib.decompressobj(wbits=31)
    try:
        plain = inflate.decompress(data, MOST_BYTES + 1)
    except zlib.error as problem:
        raise BadInput(f"it is no whole gzip file: {problem}") from problem
    if not inflate.eof and len(plain) <= MOST_BYTES:
        raise BadInput("it is a gzip file that ends too early")
    return plain
