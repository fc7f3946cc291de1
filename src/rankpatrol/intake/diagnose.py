"""Reads whatever is given, each by its form, and gives one answer."""

import stat
from collections.abc import Callable
from pathlib import Path

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.logs import diagnose_logs
from rankpatrol.analysis.told.stacks import diagnose_stacks
from rankpatrol.analysis.told.together import together, weigh
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.errors import BadInput, NoPermission, PatrolError
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.testimony import FILE_ORDERS, Teller
from rankpatrol.evidence.findings import speakable
from rankpatrol.evidence.redact import redact_text
from rankpatrol.formats.log_ledger import Ledger
from rankpatrol.formats.log_names import teller_of
from rankpatrol.formats.log_prefixes import peel
from rankpatrol.formats.log_reader import Reader
from rankpatrol.formats.log_sieve import Sieve
from rankpatrol.formats.long_numbers import without_long_numbers
from rankpatrol.formats.steps import find_step
from rankpatrol.intake.forms import FILE_FORMS, FOLDER_FORMS, RECORDINGS, STACKS, TEXT_FORMS, Beside, FileForm
from rankpatrol.intake.sources import Source, chunks, find, texts

# Of all files together, this much is read line by line; the rest goes through the sieve.
_CLOSE_HEAD_BYTES, _CLOSE_TAIL_BYTES = 512 << 10, 2 << 20
_LEAST_HEAD_BYTES, _LEAST_TAIL_BYTES = 2 << 10, 8 << 10
_SNIFFED_BYTES = 64 << 10
# From so many files of so many bytes on, what their heads and tails have in common is not read in each of them.
_MANY_FILES, _MANY_BYTES = 64, 64 << 20
# A longer text whose lines mostly look like a log's is none of the other forms.
_SURELY_TEXT_BYTES, _PROBES, _MOSTLY_LOG = 64 << 10, 10, 0.7
_LONGEST_ERROR = 160
_PROBED_CHARS = 500
# Text forms get all of a text; a longer one is a log.
_MOST_TEXT_BYTES = 32 << 20

Watch = Callable[[int], None]


class Answer(Record, frozen=True):
    """The diagnosis, how much was read, and what could not be."""

    diagnosis: Diagnosis
    files: int
    bytes_read: int
    missing: tuple[str, ...]


def diagnose(paths: tuple[str, ...], watch: Watch = lambda _bytes: None) -> Answer:
    """One answer about all that `paths` hold; `watch` is told of the bytes read.

    Raises:
        BadInput, NoPermission: where nothing at all was readable.
    """
    answers, rest, missing = _folders(paths)
    sources, more = find(rest)
    missing += more
    sources, taken = _by_file_form(sources)
    reading = _Reading(sources, watch)
    closed = False
    for source in sources:
        try:
            reading.read(source)
        except (BadInput, NoPermission) as problem:
            missing.append(Missing(f"{problem} ({problem.help})"))
            closed = closed or isinstance(problem, NoPermission)
    logs = diagnose_logs(reading.ledger) if reading.bytes_read else None
    beside = _beside(Story(reading.ledger))
    from_files = {name: answer for name, paths in taken.items() if (answer := _read_files(name, paths, beside, missing)) is not None}
    answers += [answer for name, answer in from_files.items() if name != RECORDINGS] + reading.answers
    joined = together(logs, reading.stacks(), from_files.get(RECORDINGS))
    best = weigh([*answers, *([joined] if joined is not None else [])])
    if best is None:
        raise _nothing_read(paths, missing, NoPermission if closed else BadInput)
    return Answer(speakable(best), len(sources), reading.bytes_read, tuple(redact_text(each.reason) for each in missing))


def _folders(paths: tuple[str, ...]) -> tuple[list[Diagnosis], tuple[str, ...], list[Missing]]:
    answers: list[Diagnosis] = []
    rest: list[str] = []
    missing: list[Missing] = []
    for text in paths:
        form = next((form for form in FOLDER_FORMS if text != "-" and form.recognises(Path(text))), None)
        if form is None:
            rest.append(text)
            continue
        try:
            answer = form.read(Path(text))
        except PatrolError as problem:
            missing.append(Missing(f"{problem} ({problem.help})"))
            continue
        if answer is None:
            rest.append(text)
        else:
            answers.append(answer)
    return answers, tuple(rest), missing


def _by_file_form(sources: list[Source]) -> tuple[list[Source], dict[str, list[Path]]]:
    """What is read line by line, and the files of each form."""
    taken: dict[str, list[Path]] = {}
    rest = []
    for source in sources:
        form = _file_form(source.path) if source.path is not None else None
        if form is None or source.path is None:
            rest.append(source)
        else:
            taken.setdefault(form.name, []).append(source.path)
    return rest, taken


def _read_files(name: str, paths: list[Path], beside: Beside, missing: list[Missing]) -> Diagnosis | None:
    form = next(form for form in FILE_FORMS if form.name == name)
    try:
        return form.read(tuple(paths), beside)
    except PatrolError as problem:
        missing.append(Missing(f"{problem} ({problem.help})"))
        return None


def _beside(story: Story) -> Beside:
    """What the logs can tell to those who read other evidence of the same job."""
    errors: dict[int, str] = {}
    for failure in story.failures:
        if failure.rank is not None:
            errors.setdefault(failure.rank, failure.fact.text[:_LONGEST_ERROR])
    waiting = frozenset(wait.rank for wait in story.waits if wait.rank is not None)
    return Beside(errors=errors, timed_out=waiting, world_size=story.world_size)


def _file_form(path: Path) -> FileForm | None:
    """Names first: a folder may hold 100,000 files, and few of them are worth opening for this."""
    by_name = [form for form in FILE_FORMS if form.named(path)]
    if not by_name:
        return None
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES)
    except OSError:
        return None
    return next((form for form in by_name if form.begins(head)), None)


class _Reading:
    """All logs and texts of one call."""

    def __init__(self, sources: list[Source], watch: Watch) -> None:
        self.ledger = Ledger()
        self.answers: list[Diagnosis] = []
        self._stacks: list[tuple[int | None, str]] = []
        self.bytes_read = 0
        self._watch = watch
        self._order = 0
        self._shapes: dict[bytes, int] = {}
        files, total = len(sources), sum(source.size_bytes or 0 for source in sources)
        self._read_closely: dict[bytes, int] | None = {} if files >= _MANY_FILES and total >= _MANY_BYTES else None
        self._head = max(_LEAST_HEAD_BYTES, _CLOSE_HEAD_BYTES // max(1, files))
        self._tail = max(_LEAST_TAIL_BYTES, _CLOSE_TAIL_BYTES // max(1, files))

    def read(self, source: Source) -> None:
        """One source, chunk by chunk. What was read before a problem counts."""
        sieve = Sieve(head_bytes=self._head, tail_bytes=self._tail, shapes=self._shapes, read_closely=self._read_closely)
        reader = Reader(source.name, teller_of(source.name), order=self._order)
        whole: bytearray | None = bytearray() if TEXT_FORMS else None
        try:
            for chunk in texts(source, chunks(source)):
                self.bytes_read += len(chunk)
                self._watch(len(chunk))
                if whole is not None:
                    whole += chunk
                    whole = whole if len(whole) <= _MOST_TEXT_BYTES else None
                for number, line in sieve.feed(chunk):
                    self.ledger.take(reader.read(number, line))
        finally:
            for number, line in sieve.finish():
                self.ledger.take(reader.read(number, line))
            self.ledger.take(reader.finish())
            self._order = (reader.order // FILE_ORDERS + 1) * FILE_ORDERS
            if whole and not _is_a_log(whole):
                self._as_text(bytes(whole), teller_of(source.name).rank)

    def stacks(self) -> Diagnosis | None:
        """What the stacks of all files say together: tools write one file a process, and its name may hold the rank."""
        if len(self._stacks) < 2:
            return diagnose_stacks(self._stacks[0][1]) if self._stacks else None
        parts = [text if rank is None else f"## rank={rank}\n{text}" for rank, text in self._stacks]
        return diagnose_stacks("\n\n".join(parts)) or weigh([found for _, text in self._stacks if (found := diagnose_stacks(text))])

    def _as_text(self, raw: bytes, rank: int | None) -> None:
        text = without_long_numbers(raw.replace(b"\0", b"").decode("utf-8", "replace"))
        for form in TEXT_FORMS:
            if form.name == STACKS:
                if form.recognises(text):
                    self._stacks.append((rank, text))
            elif form.recognises(text) and (answer := form.read(text)) is not None:
                self.answers.append(answer)


def _nothing_read(paths: tuple[str, ...], missing: list[Missing], kind: type[BadInput | NoPermission]) -> BadInput | NoPermission:
    why = "; ".join(each.reason for each in missing[:3]) or "empty, or nothing but files that are no logs"
    return kind(
        f"nothing readable in {', '.join(paths)}: {why}",
        help="Give a log, a folder of logs, a sealed bundle, or pipe a text into `rankpatrol diagnose -`.",
    )


def _is_a_log(raw: bytearray) -> bool:
    """Whether most of a long text's lines, probed all over it, have a log's prefixes or count steps."""
    if len(raw) <= _SURELY_TEXT_BYTES:
        return False
    likely = probed = 0
    for at in range(0, len(raw), len(raw) // _PROBES):
        begin = raw.find(b"\n", at) + 1
        end = raw.find(b"\n", begin)
        if not 0 < begin < end or begin - at > _SURELY_TEXT_BYTES:
            probed += 1
            continue
        line = raw[begin : min(end, begin + _PROBED_CHARS)].decode("utf-8", "replace")
        told = peel(line)
        probed += 1
        likely += told.at is not None or told.level is not None or told.teller != Teller() or find_step(line) is not None
    return likely >= _MOSTLY_LOG * probed
