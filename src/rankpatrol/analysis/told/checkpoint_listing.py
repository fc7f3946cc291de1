"""The answer to a list of checkpoint files: whether each set is whole."""

import re
from collections import defaultdict
from statistics import median

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.formats.file_listing import Listed, parse_listing

_CHECKPOINT = re.compile(
    r"\.(pt|pth|ckpt|bin|safetensors|distcp|tar|pdparams|msgpack|index)(\.tmp|\.part|\.incomplete)?$|\.metadata$|optim_states|model_states|"
    r"mp_rank_\d+|zero_pp_rank|(^|/)latest\w*(\.txt)?$|common\.pt$|(^|[/_.-])(checkpoint|ckpt|global_step|step|iter)s?([-_]\w*|\d\w*)?$",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(r"\.(tmp|temp|part|partial|incomplete|writing|inprogress)(\.|$)|[._]tmp$|(^|/)\.?tmp[-_]", re.IGNORECASE)
_NUMBER_IN_SET = re.compile(r"(shard[-_]?|part[-_]|rank[-_]?|__|model-|pytorch_model-|_)(\d+)(?=[_.-]|$)", re.IGNORECASE)
_OF = re.compile(r"-(\d+)-of-(\d+)")
_STEP = re.compile(r"(?:(?:global_?)?step|iter|iteration|epoch|checkpoint|ckpt)s?[-_=]?(\d[\d_]*)|(\d+)[-_]?steps?", re.IGNORECASE)
_LOAD_ERRORS = (
    (
        re.compile(r"PytorchStreamReader failed|failed finding central directory|not a ZIP archive|BadZipFile", re.IGNORECASE),
        "its archive has no directory at its end",
    ),
    (
        re.compile(r"unexpected EOF|Ran out of input|EOFError|expected \d+ more bytes|file might be corrupted", re.IGNORECASE),
        "it ends before its content does",
    ),
    (re.compile(r"invalid magic number|UnpicklingError|invalid load key|corrupt", re.IGNORECASE), "its first bytes are not a checkpoint's"),
    (
        re.compile(r"SafetensorError|HeaderTooLarge|HeaderTooSmall|InvalidHeader|MetadataIncompleteBuffer", re.IGNORECASE),
        "its header and its length disagree",
    ),
)
# A whole shard of the same number in another step differs by a few bytes of metadata; of a set, by padding.
_SAME_SHARD = 0.999
_SAME_SET = 0.8
_FEWEST_FILES = 2


class Fault(Record, frozen=True, kw_only=True):
    """One thing that is wrong: `broken` where a file's content is short, else something is missing."""

    of: str
    why: str
    broken: bool


def diagnose_checkpoints(text: str) -> Diagnosis | None:
    """`ok`, `incomplete`, `corrupt` or `undetermined`, or None where the text lists no checkpoints and no error of reading one."""
    if not any(word in text for word in _WORDS):
        return None
    files = tuple(entry for entry in parse_listing(text) if _CHECKPOINT.search(entry.path) and not entry.path.endswith(".py"))
    errors = tuple(why for line in text.splitlines() for pattern, why in _LOAD_ERRORS if pattern.search(line))
    if len(files) < _FEWEST_FILES and not (files and errors) and not (errors and _is_short(text) and "load" in text):
        return None
    sets = _sets(files)
    faults = [*_of_files(sets), *_of_sets(sets), *_of_pointers(files), *(Fault(of="a file", why=why, broken=True) for why in errors)]
    if not faults:
        return _whole(sets, files)
    return _faulty(faults, sets)


_WORDS = (
    ".pt",
    ".ckpt",
    ".distcp",
    ".safetensors",
    ".bin",
    ".metadata",
    "latest",
    "step",
    "iter_",
    "checkpoint",
    "torch.load",
    "PytorchStreamReader",
)


def _is_short(text: str) -> bool:
    return text.count("\n") < _SHORT and "ProcessGroupNCCL" not in text


_SHORT = 80


def _set_of(path: str) -> str:
    """The set a file belongs to: its folder and, where several steps share one, the step in its name."""
    folder, _, name = path.rpartition("/")
    found = re.match(r"((?:checkpoint|ckpt|model|step|epoch|iter)[-_]?(?:\d[\d_]*|last|best|latest)?)(?=[-.])", name, re.IGNORECASE)
    stem = found[1] if found and not _OF.search(name) else ""
    if _is_subfolder(folder):
        folder = folder.rpartition("/")[0]
    return f"{folder}/{stem}" if stem and folder else stem or folder


def _is_subfolder(folder: str) -> bool:
    return (
        re.search(r"/(mp_rank_\w+|optim\w*|model|pytorch_model_fsdp_0|dist_optimizer)$", folder) is not None
        and _STEP.search(folder) is not None
    )


def _sets(files: tuple[Listed, ...]) -> dict[str, list[Listed]]:
    sets: dict[str, list[Listed]] = defaultdict(list)
    for entry in files:
        if entry.size_bytes is not None and entry.target is None and not entry.is_folder:
            sets[_set_of(entry.path)].append(entry)
    return dict(sets)


def _plain(entry: Listed, of: str) -> str:
    """The name of a file within its set, the same in every step."""
    name = entry.path.removeprefix(of).lstrip("/")
    return _UNFINISHED.sub("", _STEP.sub("#", name))


def _alike(entry: Listed, of: str) -> str:
    return _NUMBER_IN_SET.sub(r"\1#", _plain(entry, of))


def _of_files(sets: dict[str, list[Listed]]) -> list[Fault]:
    everywhere: dict[str, list[int]] = defaultdict(list)
    for of, entries in sets.items():
        for entry in entries:
            if not _UNFINISHED.search(entry.path):
                everywhere[_plain(entry, of)].append(entry.size_bytes or 0)
    faults = []
    for of, entries in sets.items():
        within: dict[str, list[int]] = defaultdict(list)
        for entry in entries:
            within[_alike(entry, of)].append(entry.size_bytes or 0)
        short = [(entry, _short(entry, everywhere[_plain(entry, of)], within[_alike(entry, of)])) for entry in entries]
        faults += [Fault(of=of, why=f"{entry.path.rpartition('/')[2]} {why}", broken=True) for entry, why in short if why is not None]
    return faults


def _short(entry: Listed, elsewhere: list[int], within: list[int]) -> str | None:
    size = entry.size_bytes or 0
    if _UNFINISHED.search(entry.path):
        return None
    if size == 0:
        return "is empty"
    usual = max(elsewhere, default=0)
    if len(elsewhere) > 1 and size < _SAME_SHARD * usual and usual > _SMALL_BYTES:
        return f"has {size} bytes; the same shard has {usual} in another step"
    if len(within) > 2 and not _OF.search(entry.path) and size < _SAME_SET * median(within) and median(within) > _SMALL_BYTES:
        return f"has {size} bytes; its siblings have {median(within):.0f}"
    return None


_SMALL_BYTES = 1 << 20


def _of_sets(sets: dict[str, list[Listed]]) -> list[Fault]:
    faults = []
    names = {of: {_plain(entry, of) for entry in entries if not _UNFINISHED.search(entry.path)} for of, entries in sets.items()}
    for of, entries in sets.items():
        own = names[of]
        unfinished = [entry.path.rpartition("/")[2] for entry in entries if _UNFINISHED.search(entry.path)]
        faults += [Fault(of=of, why=f"{name} was never renamed to its final name", broken=False) for name in unfinished]
        if any(name.endswith(".distcp") for name in own) and ".metadata" not in own:
            faults.append(Fault(of=of, why="it has shards and no .metadata, which is written last", broken=False))
        faults += [Fault(of=of, why=why, broken=False) for why in _lacking(own, [other for key, other in names.items() if key != of])]
    return faults


def _lacking(own: set[str], others: list[set[str]]) -> list[str]:
    for name in own:
        if (number := _OF.search(name)) and len(number[2]) < 7:
            have = {int(each[1]) for other in own if (each := _OF.search(other)) and _OF.sub("", other) == _OF.sub("", name)}
            missing = [
                at for at in range(1, int(number[2]) + 1) if at not in have and at not in {have_at + 1 for have_at in have if 0 in have}
            ]
            if missing and len(have) < int(number[2]):
                return [f"of {int(number[2])} shards only {len(have)} are there"]
    fuller = next((other for other in others if own and own < other and len(own) * 2 >= len(other)), None)
    if fuller is not None:
        return [f"{', '.join(sorted(fuller - own)[:3])} is missing, which another step has"]
    return _gaps(own)


def _gaps(own: set[str]) -> list[str]:
    """Shards are numbered without gaps: `__0_0.distcp`, `shard12.pt`, `rank_3.pt`."""
    series: dict[str, set[int]] = defaultdict(set)
    for name in own:
        found = _SHARD.search(name)
        if found and len(found[2]) < 7:
            series[name[: found.start(2)] + "#" + name[found.end(2) :]].add(int(found[2]))
    for numbers in series.values():
        if len(numbers) > 2 and max(numbers) - min(numbers) + 1 > len(numbers):
            gap = next(at for at in range(min(numbers), max(numbers)) if at not in numbers)
            return [f"shard {gap} is missing between {min(numbers)} and {max(numbers)}"]
    return []


_SHARD = re.compile(r"(shard[-_]?|(?<![a-z])rank[-_]?|^__)(\d+)", re.IGNORECASE)


def _of_pointers(files: tuple[Listed, ...]) -> list[Fault]:
    known = {part for entry in files if entry.target is None for part in (entry.path, *entry.path.split("/"))}
    pointers = [(entry.path, entry.target) for entry in files if entry.target is not None]
    return [
        Fault(of=path, why=f"it points to {target}, which is not listed", broken=False)
        for path, target in pointers
        if target.rstrip("/").rpartition("/")[2] not in known and not any(target in name for name in known)
    ]


def _step(of: str) -> int:
    found = _STEP.findall(of)
    digits = "".join(found[-1]).replace("_", "") if found else ""
    return int(digits[:15]) if digits.isdigit() else -1


def _faulty(faults: list[Fault], sets: dict[str, list[Listed]]) -> Diagnosis:
    """A set that lacks its end is incomplete, whatever its shards' sizes; a short file in a set that claims to be whole is corrupt."""
    lacking = {fault.of for fault in faults if not fault.broken}
    corrupt = any(fault.broken and fault.of not in lacking for fault in faults)
    good = sorted((of for of in sets if of not in {fault.of for fault in faults}), key=_step)
    fallback = f"Resume from {good[-1]}, which looks whole" if good else "Look for an older checkpoint elsewhere: none here is whole"
    first = next((fault for fault in faults if fault.broken is corrupt), faults[0])
    return Diagnosis(
        verdict="corrupt" if corrupt else "incomplete",
        cause="ckpt_truncated" if corrupt else "ckpt_incomplete_set",
        certainty=Certainty.SUPPORTED,
        sentence=f"{first.of or 'the checkpoint'}: {first.why}",
        reasons_for=tuple(f"{fault.of}: {fault.why}" for fault in faults[:_MOST_SAID]),
        suggested=(fallback, "Check content as well: rankpatrol checkpoints verify PATH"),
    )


_MOST_SAID = 12


def _whole(sets: dict[str, list[Listed]], files: tuple[Listed, ...]) -> Diagnosis:
    if not sets or sum(len(entries) for entries in sets.values()) < _FEWEST_FILES:
        return Diagnosis(verdict="undetermined", cause="unknown", sentence="too few files are listed to compare their sizes")
    newest = max(sets, key=_step)
    of = f"{len(sets)} {'set' if len(sets) == 1 else 'sets'}"
    return Diagnosis(
        verdict="ok",
        cause="none",
        sentence=f"{len(files)} files of {of} are listed, none empty, short or missing; the newest is {newest}",
        reasons_against=("a list shows names and sizes, not content",),
        suggested=("Check content as well: rankpatrol checkpoints verify PATH",),
    )
