"""Processes and who holds GPUs, as ps, fuser, lsof, nvidia-smi and squeue print them, in one text."""

import re

from rankpatrol.core.records import Record
from rankpatrol.formats.shell_answers import with_answers


class ListedProcess(Record, frozen=True, kw_only=True):
    """One row of ps, or what is said of one pid. None where its column is not there."""

    pid: int
    parent_pid: int | None = None
    state: str | None = None
    user: str | None = None
    terminal: str | None = None
    cpu_percent: float | None = None
    command: str | None = None


class Listing(Record, frozen=True, kw_only=True):
    """All that a text tells of processes and GPUs.

    `live_jobs` are all that run, where all were asked for; `known_jobs` run as well, as do those of a user that were asked for.
    `holders`: open GPU device files by the kernel's word; `named`: by the driver's, `unresolved` those to which it has no name;
    `names` are the driver's.
    """

    processes: dict[int, ListedProcess]
    holders: frozenset[int]
    without_device: frozenset[int]
    named: frozenset[int]
    jobs: dict[int, str]
    names: dict[int, str]
    live_jobs: frozenset[str] | None
    ended_jobs: frozenset[str]
    known_jobs: frozenset[str]
    jobs_of_users: dict[str, frozenset[str]]
    scheduler_failed: bool
    namespaced: bool
    absent: frozenset[int]
    sessions: frozenset[int]
    unkilled: frozenset[int]
    gpu_busy_percent: float | None
    memory_used: bool
    progress: bool
    nobody_named: bool
    unresolved: frozenset[int] = frozenset()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HEADER_WORDS = _words(
    "PID PPID STAT S USER UID TTY TT ELAPSED TIME CMD COMMAND ARGS COMM %CPU %MEM VSZ RSS START STIME STARTED C WCHAN PGID SID NI PRI LWP "
    "NLWP F ADDR SZ"
)
_ROW_OF = re.compile(r"^\s*(?:ps|/proc|status|pid)[ /]?\s*(\d+)\s*(?:/status|/stat)?\s*:\s*(.*)$", re.IGNORECASE)
_FIELDS = {
    "parent_pid": re.compile(r"\bPPID[:= ]\s*(\d+)", re.IGNORECASE),
    "state": re.compile(r"\b(?:STAT|STATE|State|stat|S)[:= ]\s*\(?([RSDTtZIX][sl+<NLn]*)\b"),
    "user": re.compile(r"\b(?:USER|UID)[:= ]\s*(\S+)", re.IGNORECASE),
    "terminal": re.compile(r"\bTTY?[:= ]\s*(\S+)"),
    "command": re.compile(r"\b(?:CMD|COMMAND|ARGS|cmdline|comm)[:= ]\s*(.*)$"),
}
_DEVICE = re.compile(r"/dev/(?:nvidia\d|nvidiactl|nvidia-uvm|kfd|davinci)")
_FDS = re.compile(r"^\s*(?:fds?|ls -l /proc/|/proc/|lsof(?: -p)?)\s*(\d+)(?:/fd\S*)?\s*[: ]\s*(.*)$")
_FUSER = re.compile(r"^\s*(?:fuser[^:]*|/dev/nvidia\S*):\s*([\d\s\w]*)$")
_FUSER_ROW = re.compile(r"^\s*(?:/dev/nvidia\S*:)?\s*(\S+)\s+(\d+)\s+[Fferm.]{3,6}\s+(\S+)")
_LSOF_ROW = re.compile(r"^(\S+)\s+(\d+)\s+(?:\d+\s+)?(\S+)\s+(?:\d+[rwu]?|mem)\s+CHR\s.*(/dev/nvidia\S*)")
_APP_CSV = re.compile(r"^\s*(\d+),\s*(?:\S+,\s*)?(\d+)\s*MiB|^\s*(\d+),\s*[\w./ -]+,\s*\d+\s*MiB")
_NO_NAME = re.compile(r"\[Not Found\]|\[Insufficient Permissions\]|\[N/A\]", re.IGNORECASE)
_APPS_INLINE = re.compile(r"query-compute-apps\S*:?\s*(\d.*)$")
_APP_TABLE = re.compile(r"^\|\s+\d+\s+(?:\S+\s+\S+\s+)?(\d+)\s+[CGM+]+\s+(.*?)\s+(\d+)\s*MiB\s*\|")
_PMON = re.compile(r"^\s+\d+\s+(\d+)\s+[CGM]\s+(?:\d+|-)\s+(?:\d+|-)\s")
_USED = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB")
_UTIL = re.compile(
    r"\|\s+(\d{1,3})%\s+\S|\|\s*(\d{1,3})\s?%\s*\||utilization\S*\s*[:=]?\s*(\d{1,3})\s*%|\b\d+: (\d{1,3}) ?%", re.IGNORECASE
)
_JOB = re.compile(
    r"(?:SLURM_JOB_?ID[= ]|job[_=](?:id=)?|slurm-)(\d+)|(?:pod|kubepods\S*/pod)([0-9a-f][\w-]{6,})|docker[/-]([0-9a-f]{12})",
    re.IGNORECASE,
)
_OF_PID = re.compile(r"^\s*(?:env|environ|cgroup|/proc/|cat /proc/)\s*(\d+)")
_SQUEUE = re.compile(r"^\s*(?:\$ ?)?squeue\b([^:\n]*):?\s*(.*)$")
_ENDED = re.compile(
    r"(?:sacct|scontrol|squeue)?.*?\b(\d{2,})\b\S*.*\b(COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|PREEMPTED|Invalid job id)",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"(?:squeue|slurm_load_jobs)\S* ?error: (?!Invalid job)|Unable to contact slurm|Connection refused|timed out", re.IGNORECASE
)
_ASKED_JOBS = re.compile(r"-j\w*[= ]?(\d+)")
_ASKED_USER = re.compile(r"(?:-u|--users?)[= ]?(\w[\w.-]*)")
_CHOICE = re.compile(r"(?:^|\s)(?:--me|-[ptAqnRL]|--(?:partition|states?|account|qos|name|reservation|licenses))\b")
_GONE = re.compile(r"Invalid job id|COMPLETED|CANCELLED|FAILED|TIMEOUT")
_NAMESPACE = re.compile(r"pid:\[(\d+)\]")
_INITIAL_NAMESPACE = "4026531836"
_CONTAINER = re.compile(
    r"pid namespace of (?:its|their) own|(?:own|other|separate|different) pid namespace|"
    r"^\s*(?:in )?container\s*[:=]\s*(?:yes|true|1|docker|podman|kube\w*)|/\.dockerenv(?: exists)?$|docker exec|kubectl exec|container_id",
    re.IGNORECASE | re.MULTILINE,
)
_ABSENT = re.compile(r"(?:No such process|no such pid|not found|no such file|does not exist|gone)", re.IGNORECASE)
_SESSION = re.compile(r"user@\d+|session-\w+\.scope|\.service\b|tmux|screen\b|loginctl|jupyter|vscode|system\.slice", re.IGNORECASE)
_KILLED = re.compile(r"kill(?:ed)? (?:-9|-KILL|-s KILL)[^\n]*?(\d{2,})|SIGKILL[^\n]*?(\d{2,})|SigPnd[^\n]*100\b", re.IGNORECASE)
_PROGRESS = re.compile(
    r"(?:mtime|modified|last (?:line|write|log))\D{0,16}\d{1,2} ?s(?:ec\w*)? ago|log \S* ?(?:grows|is growing)", re.IGNORECASE
)
# docker ps: whether the container of a cgroup still runs.
_CONTAINER_STATE = re.compile(r"\b([0-9a-f]{12})[0-9a-f]*\b.*\b(Up|Exited|Dead|Removal)\b")
_LONGEST = 2000


def parse_processes(text: str) -> Listing:
    """Every process, GPU user and job that a text names. Never raises; an unknown line is skipped."""
    reader = _Reader()
    for line in with_answers(text):
        if len(line) <= _LONGEST:
            reader.line(line)
    return reader.done(text)


_SETS = ("holders", "without", "named", "unresolved", "absent", "sessions", "unkilled")


class _Reader:
    """Goes through a text once."""

    def __init__(self) -> None:
        self.processes: dict[int, ListedProcess] = {}
        self.columns: list[str] | None = None
        self.sets: dict[str, set[int]] = {name: set() for name in _SETS}
        self.jobs: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.live: set[str] | None = None
        self.ended: set[str] = set()
        self.known: set[str] = set()
        self.of_users: dict[str, set[str]] = {}
        self.failed = False
        self.csv = False
        self.busy: list[float] = []
        self.used = False

    def line(self, line: str) -> None:
        self._facts(line)
        if self._header(line):
            return
        if not (self._gpu(line) or self._files(line) or self._said(line)) and self.columns is not None:
            self._row(line, self.columns)

    def _header(self, line: str) -> bool:
        words = line.split()
        if {"PID", "ACCESS"} <= set(words):
            self.columns = None
            return True
        known = [word for word in words if word.upper() in _HEADER_WORDS]
        if "PID" in words and len(known) >= 2 and len(known) == len(words):
            self.columns = words
            return True
        lower = line.lower().replace(" ", "")
        if lower.startswith(("pid,", "gpu_uuid,pid", "#gpupid", "gpu,pid")) or ",pid," in lower:
            self.csv = True
            return True
        return False

    def _row(self, line: str, columns: list[str]) -> None:
        cells = line.split(None, len(columns) - 1)
        if len(cells) < len(columns):
            return
        row = dict(zip((name.upper() for name in columns), cells, strict=True))
        if not row["PID"].isdigit():
            return
        pid = int(row["PID"])
        command = row.get("CMD") or row.get("COMMAND") or row.get("ARGS") or row.get("COMM")
        self._learn(
            pid,
            parent_pid=int(row["PPID"]) if row.get("PPID", "").isdigit() else None,
            state=row.get("STAT") or row.get("S"),
            user=row.get("USER") or row.get("UID"),
            terminal=row.get("TTY") or row.get("TT"),
            cpu_percent=_percent(row.get("%CPU")),
            command=command.lstrip(" \\_|`-") if command else None,
        )

    def _learn(self, pid: int, **facts: object) -> None:
        old = self.processes.get(pid, ListedProcess(pid=pid))
        known = {key: value if value is not None else getattr(old, key) for key, value in facts.items()}
        kept = {key: getattr(old, key) for key in old.__struct_fields__}
        self.processes[pid] = ListedProcess(**{**kept, **known})

    def _gpu(self, line: str) -> bool:
        if found := _APPS_INLINE.search(line):
            self.sets["named"].update(int(pid) for pid in re.findall(r"(\d+),\s*\d+\s*MiB", found[1]))
            return True
        if found := _APP_TABLE.match(line):
            self.names[int(found[1])] = found[2].strip()
        if found or (found := _PMON.match(line)):
            self.sets["named"].add(int(found[1]))
            return True
        if self.csv and (found := _APP_CSV.match(line)):
            pid = int(found[1] or found[3])
            self.sets["named"].add(pid)
            self.sets["unresolved"].update((pid,) if _NO_NAME.search(line) else ())
            return True
        return False

    def _files(self, line: str) -> bool:
        if found := _LSOF_ROW.match(line):
            self.sets["holders"].add(int(found[2]))
            self._learn(int(found[2]), command=None)
            return True
        if (found := _FUSER_ROW.match(line)) and self.columns is None:
            self.sets["holders"].add(int(found[2]))
            self._learn(int(found[2]), user=found[1], command=found[3])
            return True
        if found := _FUSER.match(line):
            self.sets["holders"].update(int(word.rstrip("mfer")) for word in found[1].split() if word.rstrip("mfer").isdigit())
            return True
        if (found := _FDS.match(line)) and ("fd" in line[:24] or "lsof" in line[:8]):
            self.sets["holders" if _DEVICE.search(found[2]) else "without"].add(int(found[1]))
            return True
        return False

    def _said(self, line: str) -> bool:
        if (found := _OF_PID.match(line)) and (job := _JOB.search(line)):
            self.jobs[int(found[1])] = job[1] or job[2] or job[3]
            return True
        if found := _SQUEUE.match(line):
            self._queue(found[1], found[2])
            return True
        if found := _ROW_OF.match(line):
            self._of_one(int(found[1]), found[2])
            return True
        if found := _CONTAINER_STATE.search(line):
            if found[2] == "Up":
                self.known.add(found[1])
            else:
                self.ended.add(found[1])
            return True
        if found := _ENDED.match(line):
            self.ended.add(found[1])
            return True
        return False

    def _queue(self, options: str, answer: str) -> None:
        """A query for one job, one user or one partition speaks of that alone; only one without a choice tells what does not run."""
        if _FAILED.search(answer):
            self.failed = True
            return
        asked = set(_ASKED_JOBS.findall(options))
        running = set(re.findall(r"\b(\d{2,})\b", answer)) if not _GONE.search(answer) else set()
        self.ended |= asked - running
        if user := _ASKED_USER.search(options):
            self.of_users.setdefault(user[1], set()).update(running)
        if asked or user or _CHOICE.search(options):
            self.known |= running
        else:
            self.live = (self.live or set()) | running

    def _of_one(self, pid: int, words: str) -> None:
        if _ABSENT.search(words):
            self.sets["absent"].add(pid)
            return
        facts = {key: found[1].strip() for key, pattern in _FIELDS.items() if (found := pattern.search(words))}
        parent = facts.pop("parent_pid", None)
        if facts or parent:
            self._learn(pid, parent_pid=int(parent) if parent else None, **facts)

    def _facts(self, line: str) -> None:
        if _FAILED.search(line) and "squeue" in line:
            self.failed = True
        self.used = self.used or any(int(used) > _IDLE_MIB for used, _ in _USED.findall(line))
        if "%" in line and ("|" in line or "util" in line.lower() or "nvidia-smi" in line):
            self.busy += [float(next(word for word in found if word)) for found in _UTIL.findall(line)]
        if found := _KILLED.search(line):
            self.sets["unkilled"].update(int(word) for word in found.groups() if word)
        if _SESSION.search(line) and not _JOB.search(line) and not line.lstrip().startswith("squeue"):
            self.sets["sessions"].update(int(word) for word in re.findall(r"(?<![\w.])(\d{2,7})(?![\w.])", line[:80])[:1])

    def done(self, text: str) -> Listing:
        spaces = set(_NAMESPACE.findall(text))
        return Listing(
            processes=self.processes,
            holders=frozenset(self.sets["holders"]),
            without_device=frozenset(self.sets["without"] - self.sets["holders"]),
            named=frozenset(self.sets["named"]),
            jobs=self.jobs,
            names=self.names,
            live_jobs=frozenset(self.live) if self.live is not None else None,
            ended_jobs=frozenset(self.ended),
            known_jobs=frozenset(self.known | (self.live or set())),
            jobs_of_users={user: frozenset(jobs) for user, jobs in self.of_users.items()},
            scheduler_failed=self.failed,
            namespaced=bool(spaces - {_INITIAL_NAMESPACE}) or _CONTAINER.search(text) is not None,
            unresolved=frozenset(self.sets["unresolved"]),
            absent=frozenset(self.sets["absent"]),
            sessions=frozenset(self.sets["sessions"]),
            unkilled=frozenset(self.sets["unkilled"]),
            gpu_busy_percent=max(self.busy) if self.busy else None,
            memory_used=self.used,
            progress=_PROGRESS.search(text) is not None,
            nobody_named="No running processes found" in text,
        )


_IDLE_MIB = 500


def _percent(cell: str | None) -> float | None:
    return float(cell) if cell and re.fullmatch(r"\d+(\.\d+)?", cell) else None
