"""Stacks as people paste them: py-spy, pystack, gdb, faulthandler and tracebacks, of one process or of a thousand, in one text."""

import re

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Frame, ThreadStack
from rankpatrol.formats.pasted_lines import plain_lines
from rankpatrol.formats.stack_json import read_documents
from rankpatrol.formats.stack_lines import NativeLine, ThreadLine, called_in, read_line, takes_stacks
from rankpatrol.formats.stack_marks import Fact, Header, ToldProcess, merge, read_fact, read_header


class ToldStacks(Record, frozen=True):
    """All processes in the order of the text, and the lines that are no stack.

    `cut`: the text ends in a stack that is printed newest call last, so its innermost frames may be missing. `world_size` is what the
    text says of it, `local`: its numbers are those within a node. `context_at` counts the stacks before each line of context.
    """

    processes: tuple[ToldProcess, ...]
    context: tuple[str, ...]
    stack_lines: int
    cut: bool = False
    world_size: int | None = None
    local: bool = False
    context_at: tuple[int, ...] = ()


_KERNEL = re.compile(r"^\s*\[<[0-9a-fx]*>\]\s+(\w[\w.]*)\+0x")
_FAILURE = re.compile(
    r"^\s*(?:Error|error|ERROR)\b:?\s*(.*(?:suspend|attach|process|permission|denied|timed out|stack|python).*)", re.IGNORECASE
)


def looks_like_stacks(text: str) -> bool:
    """True where a tool's stack dump makes up a good part of the text; a traceback at the end of a log does not."""
    return read_stacks(text) is not None


def read_stacks(text: str) -> ToldStacks | None:
    """The stacks of a text that is a stack dump, or None where it is something else."""
    if not any(word in text for word in _WORDS) or not _may_be_stacks(text):
        return None
    parsed = parse_stacks(text)
    others = sum(1 for line in parsed.context if line.strip())
    mostly = parsed.stack_lines >= _FEWEST_LINES and parsed.stack_lines * 2 >= others
    return parsed if parsed.processes and mostly and not _is_a_log(parsed) else None


def _may_be_stacks(text: str) -> bool:
    """Whether it is worth to read a long text whole: a log of a gigabyte with one traceback in it is not."""
    if len(text) < _LONG or '"frames"' in text:
        return True
    starts = range(0, len(text), len(text) // _PROBES)
    begins = [text.find("\n", at) + 1 for at in starts]
    lines = [text[at : at + _PROBE_CHARS].split("\n", 1)[0] for at in begins]
    return sum(1 for line in lines if read_line(line) or read_header(line) or _KERNEL.match(line)) * 4 >= len(lines)


_WORLD_SIZE = re.compile(r"(?<![A-Za-z_])(?:world[_ -]?size|nranks|num_ranks)\W{1,3}(\d{1,6})\b", re.IGNORECASE)
_LONG, _PROBES, _PROBE_CHARS = 4 << 20, 400, 500
_WORDS = ("Thread", "thread", "File ", "#0 ", "[<", '"frames"', "TID ")
_FEWEST_LINES = 2
# How a process ends that somebody else ended.
INTERRUPTED = re.compile(r"\S*(?:KeyboardInterrupt|SystemExit|SignalException|Terminated|TimeoutExpired)")
_RAISED = re.compile(r"^(?:\[\w+\]:? ?)?(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")


def _is_a_log(parsed: ToldStacks) -> bool:
    """Tracebacks that end in the exception they belong to are a log's, not stacks of what is running.

    Whoever was interrupted shows where it stood, though, and one stack of a rank that stands makes the others' exceptions a part of it.
    """
    return any(_RAISED.match(line) for line in parsed.context) and all(
        process.header == Header() or not process.threads or (process.raised is not None and not INTERRUPTED.match(process.raised))
        for process in parsed.processes
    )


def parse_stacks(text: str) -> ToldStacks:
    """Every stack in a text, with whom it belongs to. Never raises: what is no stack is context."""
    sizes = [int(number) for number in _WORLD_SIZE.findall(text)]
    text, documents = read_documents(text)
    lines, local = plain_lines(text)
    reader = _Reader()
    for line in lines:
        if (document := documents.get(line)) is not None:
            reader.document(document)
        else:
            reader.line(line)
    return msgspec.structs.replace(reader.done(cut=not text.endswith("\n")), world_size=max(sizes, default=None), local=local)


class _OpenThread:
    """A thread while its lines are read, in their order; `sources` are the lines of code of its frames, by their number."""

    def __init__(self, line: ThreadLine, frames: list[Frame], native: list[str]) -> None:
        self.line, self.frames, self.native = line, frames, native
        self.sources: dict[int, str] = {}

    def source(self, line: str) -> None:
        """The first line below a frame is its code; what follows are local variables."""
        if self.frames and not self.native:
            self.sources.setdefault(len(self.frames) - 1, line.strip())

    def done(self) -> ThreadStack:
        order = 1 if self.line.newest_first else -1
        frames, native = self.frames[::order], self.native[::order]
        source = self.sources.get(0 if order == 1 else len(frames) - 1, "")
        if takes_stacks(source) and len(frames) > 1:
            frames = frames[1:]
        elif not native and (name := called_in(source)) is not None:
            native = [name]
        return ThreadStack(
            thread_id=self.line.thread_id,
            name=self.line.name,
            active=bool(self.line.active),
            owns_gil=self.line.owns_gil,
            frames=tuple(frames),
            native=tuple(native),
        )


class _Open:
    """A process while its lines are read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.threads: list[_OpenThread] = []
        self.kernel: list[str] = []
        self.facts = Fact()
        self.failure: str | None = None
        self.raised: str | None = None

    def is_empty(self) -> bool:
        return not (self.threads or self.kernel or self.failure or self.facts != Fact())

    def done(self) -> ToldProcess:
        kept = [each for each in self.threads if each.frames or each.native]
        return ToldProcess(
            header=self.header,
            threads=tuple(each.done() for each in kept),
            activity=tuple(each.line.active for each in kept),
            kernel=tuple(self.kernel),
            state=self.facts.state,
            wait_channel=self.facts.wait_channel,
            thread_count=self.facts.threads,
            failure=self.failure,
            raised=self.raised,
        )


class _Reader:
    """Goes through a text once, line by line."""

    def __init__(self) -> None:
        self.closed: list[_Open] = []
        self.at = _Open(Header())
        self.context: list[str] = []
        self.context_at: list[int] = []
        self.taken = 0
        self.stack_lines = 0
        self.mark: Header | None = None
        self.separated = False

    def line(self, line: str) -> None:
        if not line.strip():
            self.separated = True
            return
        if not (self._stack_line(line) or self._mark(line)):
            self.context.append(line)
            self.context_at.append(self.taken + bool(self.at.threads))
        self.separated = False

    def document(self, processes: tuple[ToldProcess, ...]) -> None:
        """Stacks that came as JSON: each is a process, of the header at hand where it has none of its own."""
        for process in processes:
            header = merge(process.header, self.at.header) if self.at.is_empty() else process.header
            self._open(header)
            self.at.threads = [
                _OpenThread(
                    ThreadLine(newest_first=True, thread_id=t.thread_id, name=t.name, active=active, owns_gil=t.owns_gil),
                    list(t.frames),
                    list(t.native),
                )
                for t, active in zip(process.threads, process.activity, strict=True)
            ]
            self.stack_lines += sum(len(thread.frames) for thread in process.threads)

    def done(self, *, cut: bool) -> ToldStacks:
        cut = cut and bool(self.at.threads) and not self.at.threads[-1].line.newest_first
        processes = [each.done() for each in (*self.closed, self.at) if not each.is_empty()]
        kept = tuple(process for process in processes if process.threads or process.kernel or process.failure or process.header != Header())
        return ToldStacks(
            kept if any(process.threads or process.kernel for process in kept) else (),
            tuple(self.context),
            self.stack_lines,
            cut,
            context_at=tuple(self.context_at),
        )

    def _stack_line(self, line: str) -> bool:
        if found := _KERNEL.match(line):
            self.at.kernel.append(found[1])
            self.stack_lines += 1
            return True
        event = read_line(line)
        if isinstance(event, ThreadLine):
            self._thread_line(event)
        elif event is None or not self._frame(event, line):
            return self._source(line)
        self.stack_lines += 1
        return True

    def _source(self, line: str) -> bool:
        if not self.at.threads or not _is_source(line):
            return False
        self.at.threads[-1].source(line)
        return True

    def _thread_line(self, event: ThreadLine) -> None:
        same = self.at.threads and event.name == "MainThread" and any(each.line.name == "MainThread" for each in self.at.threads)
        if same:
            self._open(self.at.header)
        self.at.threads.append(_OpenThread(event, [], []))

    def _frame(self, event: Frame | NativeLine, line: str) -> bool:
        if not self.at.threads:
            if not _may_begin(event, line):
                return False
            self.at.threads.append(_OpenThread(ThreadLine(newest_first=", in " not in line or "#" in line[:8]), [], []))
        thread = self.at.threads[-1]
        if isinstance(event, Frame):
            thread.frames.append(event)
        elif not event.name.startswith("?"):
            thread.native.append(event.name)
        return True

    def _mark(self, line: str) -> bool:
        if (header := read_header(line)) is not None:
            self._header(header)
            self._fact(line)
            return True
        if line.lstrip().startswith("Fatal Python error"):
            if self.at.threads:
                self._open(Header())
            self.at.failure = line.strip()
            return True
        if self.at.threads and not self.at.threads[-1].line.newest_first and self.at.header != Header() and _RAISED.match(line):
            self.at.raised = line.strip()
            return False
        if self._fact(line):
            return False
        if (found := _FAILURE.match(line)) and not self.at.threads and self.at.header != Header():
            self.at.failure = found[1].strip()
        return False

    def _header(self, header: Header) -> None:
        only_parent = header.parent_pid is not None and header.pid is None and header.rank is None
        if only_parent or (self.at.is_empty() and _agree(self.at.header, header)):
            self.at.header = merge(self.at.header, header)
        else:
            self._open(header)

    def _fact(self, line: str) -> bool:
        fact = read_fact(line)
        if fact is None:
            return False
        for each in [*reversed(self.closed), self.at] if fact.pid is not None else [self.at]:
            if fact.pid is None or each.header.pid == fact.pid or any(thread.line.thread_id == fact.pid for thread in each.threads):
                each.facts = Fact(
                    state=fact.state or each.facts.state,
                    wait_channel=fact.wait_channel or each.facts.wait_channel,
                    threads=fact.threads or each.facts.threads,
                )
                break
        return True

    def _open(self, header: Header) -> None:
        if not self.at.is_empty() or self.at.header.rank is not None:
            self.closed.append(self.at)
        self.taken += bool(self.at.threads)
        self.at = _Open(header)


def _agree(old: Header, new: Header) -> bool:
    pairs = ((old.rank, new.rank), (old.pid, new.pid))
    return all(left is None or right is None or left == right for left, right in pairs)


def _may_begin(event: Frame | NativeLine, line: str) -> bool:
    return line.lstrip().startswith(("#0", "frame #0", "* frame #0")) if isinstance(event, NativeLine) else 'File "' in line


_SOURCE = re.compile(r"^\s{4,}\S")


def _is_source(line: str) -> bool:
    """The line of code below a frame, or its local variables."""
    return _SOURCE.match(line) is not None
