"""Who wrote a line, and when: what launchers, schedulers, loggers and collectors put before it. One row a style."""

import re

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Stamp, Teller
from rankpatrol.formats.log_stamps import glog_stamp, kernel_stamp, stamp_at


class Line(Record, frozen=True, kw_only=True):
    """A line without what stood before it. `group` and `group_rank` are c10d's: a rank INSIDE a process group, not the global one."""

    text: str
    teller: Teller
    at: Stamp | None = None
    level: str | None = None
    group: str | None = None
    group_name: str | None = None
    group_rank: int | None = None


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
# Name, form, and the characters it may begin with. Group names say what a number is: `rank` is global, `local` is not.
STYLES = (
    ("torch, and own loops: [rank3]: or [rank 3]", r"\[(?:rank|RANK)[ :=]{0,2}(?P<rank>\d{1,6})\]:?", "["),
    ("torchrun --tee: [default3]:, by role name and LOCAL rank", r"\[(?!rank|RANK|Rank)[a-zA-Z_]{1,20}(?P<local>\d{1,3})\]:", "["),
    ("mpirun --tag-output: [1,3]<stderr>:", r"\[\d+,(?P<rank>\d{1,6})\]<std(?:out|err|diag)>:", "["),
    ("horovodrun: [3]<stderr>:", r"\[(?P<rank>\d{1,6})\]<std(?:out|err)>:", "["),
    ("Ray: (Actor pid=7, ip=10.0.0.1)", r"\((?P<component>[\w.:-]+)(?: [\w=]+)? pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\)", "("),
    ("Ray's node daemon", r"\((?P<component>raylet|autoscaler|gcs_server)(?:, ip=(?P<host>[\w.:-]+))?\)", "("),
    ("kubectl logs --prefix: [pod/name/container]", r"\[pod/(?P<component>[\w.-]+)/[\w.-]+\]", "["),
    ("container runtime: stderr F", r"std(?:out|err) [FP](?= )", "s"),
    ("docker compose: worker-3  |", r"(?P<component>[a-zA-Z][\w.-]{0,40}) {1,20}\|(?= )", LETTERS),
    ("NCCL: node-a:2101:2140 [0]", r"(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+):\d+ \[(?P<device>\d+)\]", LETTERS),
    ("syslog's kernel lines: gpu-3 kernel:", r"(?P<host>[A-Za-z][\w.-]{0,60}) kernel:(?= )", LETTERS),
    ("srun --label: 11:", r" {0,6}(?P<rank>\d{1,6}): (?!\d+ ?%)", "0123456789 "),
    ("logging's usual form: trainer - INFO -", r"[\w.]{1,60} - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ", LETTERS),
    ("rank3: or Rank 3:", r"[Rr]ank[ _]?(?P<rank>\d{1,6}) ?[:|](?= |$)", "Rr"),
    ("transformers: [INFO|trainer.py:2414]", r"\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\|[\w./-]+:\d+\](?= )", "["),
    (
        "a logger's level: INFO, [WARNING], ERROR:",
        r"[\[|]? ?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?:\]|:| ?\||(?=\s))",
        "[|DIWECF ",
    ),
    ("vLLM, DeepSpeed: [core.py:367], [launch.py:315:sigkill_handler]", r"\[[\w.-]{1,60}\.py:\d+(?::\w+)?\]", "["),
    ("a line number or pid of a viewer: [80746] [rank0]", r"\[\d{1,9}\](?= \[(?:rank|[EWIF]\d* ))", "["),
    ("a separator", r"[|,-] (?!now=)(?=\S)", "|,-"),
)
_STAMPS = "[(0123456789" + LETTERS
_BY_FIRST = {
    first: tuple(re.compile(regex) for _, regex, firsts in STYLES if first in firsts)
    for first in sorted(set(_STAMPS).union(*(firsts for _, _, firsts in STYLES)))
}
# c10: `[E ProcessGroupNCCL.cpp:475] `, `[E722 09:00:10.118820000 ProcessGroupNCCL.cpp:632] `;
# torchelastic: `W1129 12:37:58.484000 4257 torch/…py:9] `.
_GLOG = re.compile(
    r"\[?(?P<level>[IWEF])(?P<stamp>\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?)?[ k](?:(?P<pid>\d+) )?(?:\S*?(?:\w+\.(?:cpp"
    r"|hpp|py|cc|h)):\d+|\S+)\] (?:\[c10d\] )?"
)
_GROUP = re.compile(
    r"\[(?:PG ID (?P<id>\d+) PG GUID (?P<guid>[^\s(\]]+)(?:\((?P<name>[^)]*)\))? Rank (?P<rank>\d+)"
    r"|PG (?P<old>[^\s\]]+)(?: \((?P<name2>[^)]*)\))? Rank (?P<rank2>\d+)|Rank (?P<rank3>\d+))\]:? ?"
)
# `rank=3` or `rank 3` after a level or at the very start of what is left: the line's own subject.
_SUBJECT = re.compile(
    r"[\[(<|{]?\s?[\"']?(?:global[_ ]?)?(?:[Rr]ank|RANK)[\"']?[ =:_#]{1,3}(?P<rank>\d{1,6})\b(?!\s*(?:->|is |successfully|failed))"
)
# An escape sequence of a terminal; pasted text often has lost the escape character itself.
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^\[(?:\d{1,2};)?\d{1,2}m")
_AFTER_INDENT = frozenset("[0123456789(")
_NOBODY = Teller()
_MOST_PREFIXES = 8


def peel(line: str, teller: Teller = _NOBODY) -> Line:
    """The line without its prefixes. What they say of the writer goes before what `teller` (the file's name) says."""
    known: dict[str, str] = {}
    at, text = None, _bare(line)
    for _ in range(_MOST_PREFIXES):
        rest, seen, stamp = _one(text)
        if rest == text:
            break
        text, at = rest, at or stamp
        known |= {key: value for key, value in seen.items() if key not in known or key == "rank"}
    level, group = None, None
    if glog := _GLOG.match(text):
        level, text = glog["level"], text[glog.end() :]
        at = (glog_stamp(glog["stamp"]) if glog["stamp"] else None) or at
        if glog["pid"]:
            known.setdefault("pid", glog["pid"])
    while seen_group := _GROUP.match(text):
        group = group or seen_group
        text = text[seen_group.end() :]
    if "rank" not in known and group is None and (subject := _SUBJECT.match(text)):
        known["rank"] = subject["rank"]
    return _line(text, _teller(known, teller), at, level, group)


def _bare(line: str) -> str:
    """Without colours and frames of a terminal, and without the indent of a line that begins with a stamp or a bracket."""
    if "\x1b" in line or "[" in line[:6]:
        line = _COLOUR.sub("", line)
    bare = line.lstrip(" \u2502|")
    return bare if bare[:1] in _AFTER_INDENT else line


def _one(text: str) -> tuple[str, dict[str, str], Stamp | None]:
    """One prefix less."""
    first = text[:1]
    if first in _STAMPS and first and (first not in LETTERS or text[3:4] == " ") and (stamped := _stamped(text)):
        return stamped[1], {}, stamped[0]
    for regex in _BY_FIRST.get(first, ()):
        if seen := regex.match(text):
            found = {key: value for key, value in seen.groupdict().items() if value is not None}
            return text[seen.end() :].lstrip(" "), found, None
    return text, {}, None


def _stamped(text: str) -> tuple[Stamp, str] | None:
    begin = 1 if text[:1] in "[(" else 0
    if found := stamp_at(text, begin):
        stamp, end = found
    elif found := kernel_stamp(text):
        stamp, end = found
        return stamp, text[end:].lstrip()
    else:
        return None
    if begin and text[end : end + 1] not in "])":
        return None
    return stamp, text[end + begin :].lstrip(" :,")


def _teller(known: dict[str, str], otherwise: Teller) -> Teller:
    def number(key: str, other: int | None) -> int | None:
        return int(known[key]) if key in known else other

    device = number("device", None)
    return Teller(
        rank=number("rank", otherwise.rank),
        local_rank=number("local", device if device is not None else otherwise.local_rank),
        host=known.get("host", otherwise.host),
        pid=number("pid", otherwise.pid),
        component=known.get("component", otherwise.component),
    )


def _line(text: str, teller: Teller, at: Stamp | None, level: str | None, group: re.Match[str] | None) -> Line:
    if group is None:
        return Line(text=text, teller=teller, at=at, level=level)
    rank = group["rank"] or group["rank2"] or group["rank3"]
    return Line(
        text=text,
        teller=teller,
        at=at,
        level=level,
        group=group["guid"] or group["old"],
        group_name=group["name"] or group["name2"],
        group_rank=int(rank),
    )
