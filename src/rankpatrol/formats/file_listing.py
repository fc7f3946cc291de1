"""Lists of files as ls, find, du and people print them."""

import re

from rankpatrol.core.records import Record


class Listed(Record, frozen=True, kw_only=True):
    """One file or link. `size_bytes` is None where only its name is told."""

    path: str
    size_bytes: int | None
    target: str | None = None
    is_folder: bool = False


_SIZE = r"(\d+(?:\.\d+)?)([KMGT]i?B?|B)?"
_DATE = (
    r"(?:[A-Z][a-z]{2}\s+\d{1,2}\s+(?:\d{1,2}:\d\d|\d{4})|\d{1,2}\s+[A-Z][a-z]{2}\s+\S+|"
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::[\d.]+)?(?: [+-]\d{4})?)"
)
_LS = re.compile(rf"^(?:\s*\d+\s+\d+\s+)?([-dlbcps])[-rwxsStT]{{9}}[.+@]?\s+\d+\s+\S+\s+\S+\s+{_SIZE}\s+{_DATE}\s+(\S.*)$")
# What object stores print: the date first.
_STORED = re.compile(rf"^\s*\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?Z?\s+{_SIZE}\s+([\w./:@+=-]+)\s*$")
_NAME_SIZE = re.compile(rf"^\s*([\w./@+=-]*[\w@+=-])\s*[:\s]\s*{_SIZE}(?:\s*bytes)?\s*$")
_SIZE_NAME = re.compile(rf"^\s*{_SIZE}\s+([\w./@+=-]*[./\w][\w./@+=-]*)\s*$")
_FOLDER = re.compile(r"^(/?[\w./@+=-]+):$")
_POINTER = re.compile(
    r"^\s*(?:\$\s*)?(?:cat\s+)?(\S*(?:latest|last_checkpoint|latest_checkpointed_iteration\.txt|latest_universal)\S*?)\s*(?::|->|=|contains)\s*['\"]?([\w./-]+)['\"]?\s*$"
)
_SHOWN = re.compile(r"^\s*[$#>]?\s*cat\s+(\S*(?:latest|last_checkpoint)\S*)\s*$")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[(unit or "B")[0].replace("B", "")])


def parse_listing(text: str) -> tuple[Listed, ...]:
    """Every file of a listing, with the folder it stands in; lines that are none are skipped."""
    folder = ""
    found: list[Listed] = []
    pointer: str | None = None
    for line in text.splitlines():
        if len(line) > _LONGEST:
            continue
        if pointer is not None and (word := line.strip()) and " " not in word:
            found.append(Listed(path=pointer, size_bytes=None, target=word))
        shown = _SHOWN.match(line)
        pointer = shown[1] if shown else None
        if header := _FOLDER.match(line):
            folder = header[1].rstrip("/") + "/"
        elif (entry := _entry(line, folder)) is not None:
            found.append(entry)
    return tuple(found)


def _entry(line: str, folder: str) -> Listed | None:
    if row := _LS.match(line):
        kind, number, unit, name = row.groups()
        name, _, target = name.partition(" -> ")
        name = name.strip().rstrip("/")
        if name in {".", ".."}:
            return None
        return Listed(path=_join(folder, name), size_bytes=_bytes(number, unit), target=target.strip() or None, is_folder=kind == "d")
    if row := _STORED.match(line):
        return Listed(path=_join(folder, row[3]), size_bytes=_bytes(row[1], row[2]))
    if row := _POINTER.match(line):
        return Listed(path=_join(folder, row[1]), size_bytes=None, target=row[2])
    if row := _SIZE_NAME.match(line):
        return Listed(path=_join(folder, row[3]), size_bytes=_bytes(row[1], row[2])) if not row[3].isdigit() else None
    if row := _NAME_SIZE.match(line):
        return Listed(path=_join(folder, row[1]), size_bytes=_bytes(row[2], row[3]))
    return None


def _join(folder: str, name: str) -> str:
    return name if name.startswith("/") or "/" in name else folder + name


_LONGEST = 500
