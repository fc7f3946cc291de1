"""The lines that stack tools print, as events: one row of a table a form, whoever printed it."""

import functools
import re
import sys
from collections.abc import Callable

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Frame


class ThreadLine(Record, frozen=True, kw_only=True):
    """A thread's header. `newest_first` says how its frames are ordered; `active` is None where the tool does not tell."""

    newest_first: bool
    thread_id: int | None = None
    name: str | None = None
    active: bool | None = None
    owns_gil: bool = False


class NativeLine(Record, frozen=True):
    """One C function."""

    name: str


# py-spy shortens paths to what follows a folder of sys.path: what tells a library from the user's code must be put back.
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PACKAGES = _words(
    "accelerate aiohttp apex boto3 botocore colossalai composer dali deepspeed fairscale ffcv filelock flash_attn fsspec gcsfs google "
    "horovod huggingface_hub joblib lightning lightning_fabric lightning_utilities litdata megatron mlflow modelscope nemo numpy "
    "nvidia pandas peft prefetch_generator pyarrow pytorch_lightning ray requests s3fs s3transfer safetensors smart_open tensorflow "
    "tokenizers torch torchdata torchvision tqdm transformer_engine transformers triton trl urllib3 vllm wandb webdataset xformers"
)
_STANDARD = frozenset(name for name in sys.stdlib_module_names if name != "test")
_NATIVE_FILE = re.compile(r"\.so(\.|$)|\.(c|cc|cpp|cxx|cu|h|hpp|S|rs|asm)$|^python[\d.]*$|^lib\w+|^\[|^\?+$")


def put_back(file: str) -> str:
    """A shortened path with the folder that tells where it is from."""
    if file.startswith(("/", "<")) or "site-packages/" in file:
        return file
    first, _, rest = file.partition("/")
    if rest and first in _PACKAGES:
        return f"/site-packages/{file}"
    return f"/lib/python3/{file}" if first.removesuffix(".py") in _STANDARD else file


def _python(name: str, file: str, line: str | None) -> Frame:
    return Frame(name, put_back(file), int(line or 0))


def _pyspy_frame(found: re.Match[str]) -> Frame | NativeLine:
    name, file, line = found.groups()
    if name.startswith("0x") or _NATIVE_FILE.search(file):
        return NativeLine(plain_native(name))
    return _python(name, file, line)


def plain_native(name: str) -> str:
    """A C or C++ function without its arguments, template words and symbol version."""
    name = name.split("@", 1)[0]
    return re.split(r"[(<]", name, maxsplit=1)[0].strip() or name


def _pystack_frame(found: re.Match[str]) -> Frame | NativeLine:
    language, file, line, name = found.groups()
    return _python(name, file, line) if language == "Python" else NativeLine(plain_native(name))


def _file_frame(found: re.Match[str]) -> Frame:
    return _python(found[3], found[1], found[2])


def _gdb_frame(found: re.Match[str]) -> NativeLine:
    name = plain_native(found[1])
    asked = _POLL_ARGUMENTS.search(found[0]) if "poll" in name else None
    return NativeLine(f"poll {asked[1]} {asked[2]}" if asked else name)


# gdb prints arguments: how long poll waits, and for how many descriptors, is the mark of a data loader's queue.
_POLL_ARGUMENTS = re.compile(r"nfds=(?:nfds@entry=)?(\d+), timeout=(?:timeout@entry=)?(\d+)")


def is_native(frame: Frame) -> bool:
    """True for a frame of C that a tool printed among Python's, by its file or for want of a name."""
    return frame.name.startswith("0x") or _NATIVE_FILE.search(frame.file.rpartition("/")[2]) is not None


_Event = Frame | NativeLine | ThreadLine
_Maker = Callable[[re.Match[str]], _Event]


def _pyspy_thread(found: re.Match[str]) -> ThreadLine:
    state = found[2]
    number = None if found[1].lower().startswith("0x") else int(found[1])
    return ThreadLine(newest_first=True, thread_id=number, name=found[3], active="active" in state, owns_gil="gil" in state)


def _fault_thread(_: re.Match[str]) -> ThreadLine:
    return ThreadLine(newest_first=True)


def _pystack_thread(found: re.Match[str]) -> ThreadLine:
    return ThreadLine(newest_first=False, thread_id=int(found[1]), owns_gil="Has the GIL" in (found[2] or ""))


def _gdb_thread(found: re.Match[str]) -> ThreadLine:
    return ThreadLine(newest_first=True, thread_id=int(found[1]), name=found[2])


def _traceback(found: re.Match[str]) -> ThreadLine:
    return ThreadLine(newest_first=found[1] == "first")


def _named_thread(found: re.Match[str]) -> ThreadLine:
    return ThreadLine(newest_first=False, name=found[1])


# Tools that show no C functions print the line of code instead: what it calls is what runs below the innermost Python frame.
_CALLED = (
    (re.compile(r"\b(?:time|_time|asyncio)\.sleep\(|(?<![\w.])sleep\("), "clock_nanosleep"),
    (re.compile(r"\.(?:item|tolist|cpu)\(\)"), "_local_scalar_dense"),
    (re.compile(r"\.synchronize\(\)"), "cudaStreamSynchronize"),
    (re.compile(r"\b(?:handle|work|req|request|future|fut)s?(?:\[[^\]]*\])?\.wait\("), "c10d::Work::wait"),
)
# The frame that takes the stack is no part of what the program does.
_TAKES_STACKS = re.compile(r"\b(?:print_stack|format_stack|extract_stack|_current_frames|dump_traceback)\(\s*\)")


def called_in(source: str) -> str | None:
    """The C function that a line of code waits in, where the line tells."""
    return next((name for pattern, name in _CALLED if pattern.search(source)), None)


def takes_stacks(source: str) -> bool:
    """True for the line that printed the stack it stands in."""
    return _TAKES_STACKS.search(source) is not None


_LONGEST = 1000
_HEX_OR_NUMBER = r"(0[xX][0-9a-fA-F]+|\d+)"
# In order: a header is looked for before a frame, the exact before the loose.
_ROWS: tuple[tuple[re.Pattern[str], _Maker], ...] = (
    (re.compile(rf'^\s*Thread {_HEX_OR_NUMBER} \(((?:active|idle)[+\w]*)\)(?::\s*"?([^"]*)"?)?\s*$'), _pyspy_thread),
    (re.compile(r"^\s*(?:Current t|T)hread 0x[0-9a-fA-F]+(?: \[[^\]]*\])? \(most recent call first\):"), _fault_thread),
    (re.compile(r"^\s*Traceback for thread (\d+) (?:\([^)]*\) )?(?:\[([^\]]*)\] )?\(most recent call last\):"), _pystack_thread),
    (re.compile(r'^\s*Thread \d+ \((?:Thread 0x[0-9a-fA-F]+ )?\(?(?:LWP|process) (\d+)\)?\s*(?:"([^"]*)")?\)?'), _gdb_thread),
    (re.compile(r"^\s*TID (\d+)(:)?\s*$"), lambda found: ThreadLine(newest_first=True, thread_id=int(found[1]))),
    (re.compile(r"^\s*(?:Traceback|Stack) \(most recent call (first|last)\):"), _traceback),
    (re.compile(r'^\s*(?:-+ )?Thread:? "?(MainThread|[\w-]+Thread\S*|Thread-\d+[^":]*)"?.*:?\s*$'), _named_thread),
    (re.compile(r'^\s*\((Python|C|C\+\+|Cython|Native)\) File "([^"]*)", line (\d+), in (\S+)'), _pystack_frame),
    (re.compile(r'^\s*(?:#\d+\s+)?(?:\([^)]*\) )?File "([^"]+)", line (\d+),? in ([^\s(]+)'), _file_frame),
    (re.compile(r"^\s*#\d+ Frame 0x[0-9a-f]+, for file (\S+), line (\d+), in ([\w<>.]+)"), _file_frame),
    (
        re.compile(r"^\s*#\d+\s+(?:0x[0-9a-fA-F]+\s+)?(?:in\s+)?([A-Za-z_?~][^\n]*?)(?:\s+\(.*|\s+at \S+|\s+from \S+|\s+-\s.*|\+0x.*)?$"),
        _gdb_frame,
    ),
    (re.compile(r"^\s*(?:\* )?frame #\d+: 0x[0-9a-f]+ [^`]*`([^+\n]+?)(?: \+ \d+)?(?: at .*)?$"), _gdb_frame),
    (re.compile(r"^\s{2,6}(\S.*?) \(([^()\s:]+|<[^>]*>)(?::(\d+))?\)\s*$"), _pyspy_frame),
    # Chats and issue forms take the margin away: what is left is a frame only with its file and line.
    (re.compile(r"^([\w.<>]+) \(([^()\s:]+\.py):(\d+)\)\s*$"), _pyspy_frame),
)


@functools.lru_cache(maxsize=1 << 16)
def read_line(line: str) -> _Event | None:
    """What a line of a stack dump is: a thread's header, a Python frame, a C function; None for any other line."""
    if len(line) > _LONGEST:
        line = line[:_LONGEST]
    for pattern, make in _ROWS:
        if found := pattern.match(line):
            return make(found)
    return None
