"""Copied beside the injected `sitecustomize.py`: what the chosen rank does at its moment, under names that a user might have given."""

from __future__ import annotations  # Python 3.8 reads the annotations below only as text

import builtins
import os
import sys
import time

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from typing import Any


def rest(_plan: dict[str, Any]) -> None:
    """Sleep for ever."""
    while True:
        time.sleep(3600)


def rest_talking(_plan: dict[str, Any]) -> None:
    """Sleep for ever, while a thread of this process says each second that it lives."""
    import threading  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    def heartbeat() -> None:
        while True:
            sys.stdout.write("heartbeat: alive\n")
            sys.stdout.flush()
            time.sleep(1)

    threading.Thread(target=heartbeat, daemon=True).start()
    rest(_plan)


def pause(plan: dict[str, Any]) -> None:
    """Stand still for a while, as under a long garbage collection or swapping."""
    time.sleep(plan["seconds"])


def augment(plan: dict[str, Any]) -> None:
    """Compute for a while, as a costly transformation of the inputs does."""
    until, total = time.monotonic() + plan["seconds"], 0
    while time.monotonic() < until:
        total += sum(range(1000))


def transform(plan: dict[str, Any]) -> None:
    """Compute as much as takes this long on a CPU of one's own."""
    until, total = time.thread_time() + plan["cpu_seconds"], 0
    while time.thread_time() < until:
        total += sum(range(1000))


def overflow(_plan: dict[str, Any]) -> None:
    """Let the weights become what an overflow leaves behind."""
    import gc  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    import torch  # ruff: ignore[PLC0415] - this file is read before the training imports torch

    for each in gc.get_objects():
        if type(each) is torch.nn.Parameter:
            each.data.fill_(float("nan"))


_locks: list[Any] = []


def before_take_the_lock(_plan: dict[str, Any]) -> None:
    """In the rank: take a lock for good. Whoever is forked from here inherits it taken, and nobody there ever gives it back."""
    import threading  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    _locks.append(threading.Lock())
    _locks[0].acquire()


def take_the_lock(_plan: dict[str, Any]) -> None:
    """In a loader process: wait for a lock that its parent held when it was forked."""
    _locks[0].acquire()


def read_nowhere(_plan: dict[str, Any]) -> None:
    """Read where nothing is mapped."""
    import ctypes  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    ctypes.string_at(8)


def abort(_plan: dict[str, Any]) -> None:
    """End as an assertion of a C library does."""
    os.abort()


def fill_a_pipe(plan: dict[str, Any]) -> None:
    """Write into storage that takes no more: a named pipe whose reader does not read."""
    path = os.path.join(plan["folder"], "optimizer.bin")  # ruff: ignore[PTH118] - as below, no pathlib
    os.mkfifo(path)
    target = os.open(path, os.O_RDWR)
    while True:
        os.write(target, bytes(1 << 16))


def reduce_or_broadcast(plan: dict[str, Any]) -> None:
    """One line, at which one rank runs another collective than the others."""
    import torch  # ruff: ignore[PLC0415] - this file is read before the training imports torch

    mine = os.environ["RANK"] == str(plan["rank"])
    collective, more = (torch.distributed.broadcast, [(plan["rank"] + 1) % 2]) if mine else (torch.distributed.all_reduce, [])
    collective(torch.ones(7), *more)


def reduce_own_size(plan: dict[str, Any]) -> None:
    """The same collective on every rank, and one of them brings fewer numbers."""
    import torch  # ruff: ignore[PLC0415] - as above

    mine = os.environ["RANK"] == str(plan["rank"])
    torch.distributed.all_reduce(torch.ones(500 if mine else 4000))


def meet(_plan: dict[str, Any]) -> None:
    """One barrier more, of this rank alone."""
    import torch  # ruff: ignore[PLC0415] - as above

    torch.distributed.barrier()


def cross(plan: dict[str, Any]) -> None:
    """Two groups of the same two ranks, used by one in this order and by the other in that."""
    import torch  # ruff: ignore[PLC0415] - as above

    world = torch.distributed.get_world_size()
    pair = [plan["rank"], (plan["rank"] + 1) % world]
    groups = [torch.distributed.new_group(sorted(pair)) for _ in range(2)]
    mine = int(os.environ["RANK"])
    if mine in pair:
        for group in groups if mine == pair[0] else groups[::-1]:
            torch.distributed.all_reduce(torch.ones(1), group=group)


def evaluate(plan: dict[str, Any]) -> None:
    """Evaluate in silence: forward passes without a line and without a collective."""
    tune(plan)


def copy_in_a_child(plan: dict[str, Any]) -> None:
    """Let a child process shuffle files, and wait for it."""
    import subprocess  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    variables = {name: value for name, value in os.environ.items() if name not in {"RANK", "AT_CALL"}}
    code = "import _site_chores, json, sys; _site_chores.shuffle_files(json.loads(sys.argv[1]))"
    folder = os.path.dirname(os.path.realpath(__file__))  # ruff: ignore[PTH120]
    words = [sys.executable, "-c", code, '{"seconds": %s, "folder": "%s"}' % (plan["seconds"], plan["folder"])]  # ruff: ignore[UP031]
    subprocess.run(words, check=True, env=dict(variables, PYTHONPATH=folder))


def map_a_file(plan: dict[str, Any]) -> None:
    """Load a model by mmap from slow storage: nothing is read by call, pages come in one by one."""
    import mmap  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    size = 64 << 20
    path = os.path.join(plan["folder"], "model.bin")  # ruff: ignore[PTH118]
    with open(path, "wb") as model:  # ruff: ignore[PTH123]
        model.writelines(os.urandom(1 << 20) for _ in range(64))
        model.flush()
        os.fsync(model.fileno())
    until, at = time.monotonic() + plan["seconds"], 0
    with open(path, "rb") as model:  # ruff: ignore[PTH123]
        os.posix_fadvise(model.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(model.fileno(), size, access=mmap.ACCESS_READ) as pages:
            pages.madvise(mmap.MADV_RANDOM)
            while time.monotonic() < until:
                at = (at + (1 << 16)) % size
                pages[at]
                if at < 1 << 16:
                    os.posix_fadvise(model.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                time.sleep(0.25)


def count(_plan: dict[str, Any]) -> None:
    """Never come to an end, in three lines."""
    number = 0
    while True:
        number += 1
        if number > 1000:
            number = 0


def clean_text(_plan: dict[str, Any]) -> None:
    """Match what does not match, in more ways than anybody can try: one C call that keeps the interpreter to itself."""
    import re  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    re.match(r"(\w+\s?)+$", "word " * 40 + "!")


def update_index(_plan: dict[str, Any]) -> None:
    """Take a lock of a C library twice, as a library does that calls itself back."""
    import ctypes  # ruff: ignore[PLC0415] - as above

    library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def inspect(plan: dict[str, Any]) -> None:
    """Stop at a breakpoint, on a terminal."""
    ours = sys.stdin, sys.stdout
    # Not as its controlling terminal: the end of that would be a signal to the rank.
    terminal = os.open(plan["terminal"], os.O_RDWR | os.O_NOCTTY)
    with os.fdopen(terminal) as keys, os.fdopen(os.dup(terminal), "w") as screen:
        sys.stdin, sys.stdout = keys, screen
        breakpoint()  # ruff: ignore[T100] - that is what this is for
        sys.stdin, sys.stdout = ours


def leave(_plan: dict[str, Any]) -> None:
    """Say that all is well, and be gone."""
    os._exit(0)


def check(_plan: dict[str, Any]) -> None:
    """Refuse the input."""
    raise ValueError("expected an input of 64 features, got 63")


def tune(plan: dict[str, Any]) -> None:
    """Time candidates as an autotuner does: real arithmetic under changing frames."""
    import torch  # ruff: ignore[PLC0415] - this file is read before the training imports torch

    until = time.monotonic() + plan["seconds"]
    times: dict[int, float] = {}
    while time.monotonic() < until:
        for size in (64, 96, 160, 256, 384):
            times[size] = _time_product(torch, size)
        sorted(_rank_candidates(times))


def _time_product(torch: Any, size: int) -> float:
    began = time.perf_counter()
    left = torch.rand(size, size)
    for _ in range(8):
        left = torch.tanh(left @ torch.rand(size, size))
    left.sum().item()
    return time.perf_counter() - began


def _rank_candidates(times: dict[int, float]) -> list[tuple[float, int]]:
    return [(seconds / (size * size + turn), size) for turn in range(2000) for size, seconds in times.items()]


def shuffle_files(plan: dict[str, Any]) -> None:
    """Write shards and read them back, as a rank that prepares the data for all does."""
    until = time.monotonic() + plan["seconds"]
    number = 0
    while time.monotonic() < until:
        number += 1
        path = os.path.join(plan["folder"], "shard-%03d.bin" % (number % 32))  # ruff: ignore[PTH118, UP031] - as above, no pathlib
        with open(path, "wb") as shard:  # ruff: ignore[PTH123]
            shard.write(os.urandom(1 << 20))
        with open(path, "rb") as shard:  # ruff: ignore[PTH123]
            shard.read()
        time.sleep(0.05)


def build_vocabulary(plan: dict[str, Any]) -> None:
    """Pure arithmetic of strings in several functions: nothing is read, written or said."""
    until = time.monotonic() + plan["seconds"]
    turn = 0
    while time.monotonic() < until:
        turn += 1
        words = _tokenise(turn)
        _merge_pairs(_sort_words(_count_words(words)), words)


def _tokenise(turn: int) -> list[str]:
    text = " ".join(str(number * 7919 % (997 + turn % 7)) for number in range(20000))
    return [word.strip("0").lower() for word in text.split()]


def _count_words(words: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def _sort_words(counts: dict[str, int]) -> list[str]:
    return sorted(counts, key=lambda word: (-counts[word], word[::-1]))


def _merge_pairs(vocabulary: list[str], words: list[str]) -> int:
    places = {word: place for place, word in enumerate(vocabulary)}
    return len({(places[words[at]], places[words[at + 1]]) for at in range(len(words) - 1)})


def download(plan: dict[str, Any]) -> None:
    """Read from a server that sends a few bytes at a time, until it closes."""
    import socket  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    with socket.create_connection(("127.0.0.1", plan["port"])) as server:
        while server.recv(65536):
            pass


def write_large(plan: dict[str, Any]) -> None:
    """Write one large file in chunks to storage that takes its time."""
    until = time.monotonic() + plan["seconds"]
    with open(os.path.join(plan["folder"], "optimizer.bin"), "wb") as large:  # ruff: ignore[PTH118, PTH123]
        while time.monotonic() < until:
            large.write(bytes(1 << 20))
            large.flush()
            os.fsync(large.fileno())
            time.sleep(0.1)


def die_in_half(plan: dict[str, Any]) -> None:
    """Be killed in the middle of a save: what is on the disk is the first half of such a file."""
    import signal  # ruff: ignore[PLC0415] - not imported into a user's interpreter before its time

    with open(plan["before"], "rb") as before, open(plan["now"], "wb") as now:  # ruff: ignore[PTH123] - as below, no pathlib
        now.write(before.read(os.path.getsize(plan["before"]) // 2))  # ruff: ignore[PTH202]
    os.kill(os.getpid(), signal.SIGKILL)


def buffer_lines(_plan: dict[str, Any]) -> None:
    """Lines leave by the block, whatever the environment and the caller's `flush` say."""
    sys.stdout.reconfigure(line_buffering=False, write_through=False)  # type: ignore[union-attr]
    say = builtins.print

    def print(*values: Any, **keywords: Any) -> None:  # ruff: ignore[A001] - stands for it
        keywords.pop("flush", None)
        say(*values, **keywords)

    builtins.print = print


def drop_lines(_plan: dict[str, Any]) -> None:
    """No line leaves at all."""

    def print(*_values: Any, **_keywords: Any) -> None:  # ruff: ignore[A001] - stands for it
        return

    builtins.print = print


def skip(plan: dict[str, Any]) -> None:
    """Leave the call out: nothing is done in its place."""
