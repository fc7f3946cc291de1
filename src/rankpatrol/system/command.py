"""The one runner for other programs: an argument list, a deadline, a cap on the output, no shell."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Record


class CommandResult(Record, frozen=True, kw_only=True):
    """What a finished program said. `truncated`: it said more than was kept."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool


def run(
    arguments: Sequence[str],
    *,
    deadline_s: float,
    max_bytes: int = 1 << 20,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> CommandResult:
    """Run a program to its end. Raises CommandFailed if it cannot start or is not done in `deadline_s`; it is then killed with its group.

    A non-zero exit is a result, not an error. A program in D state is abandoned after one second: waiting for it could take for ever.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(arguments),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
    except OSError as problem:
        raise CommandFailed(f"cannot start {arguments[0]}: {problem.strerror}") from problem
    try:
        stdout, stderr, truncated = _drain(process, began + deadline_s, max_bytes)
        exit_code = process.wait(max(0.01, began + deadline_s - time.monotonic()))
    except (subprocess.TimeoutExpired, TimeoutError):
        _kill_group(process)
        raise CommandFailed(f"{arguments[0]} was not done after {deadline_s:g} s") from None
    except KeyboardInterrupt:  # it has a session of its own, and did not hear the key
        _kill_group(process)
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return CommandResult(exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=time.monotonic() - began, truncated=truncated)


def _drain(process: "subprocess.Popen[bytes]", until: float, max_bytes: int) -> tuple[bytes, bytes, bool]:
    """Read both pipes until they close; beyond `max_bytes` output is read and thrown away so that the program can end."""
    kept = {process.stdout: bytearray(), process.stderr: bytearray()}
    truncated = False
    with selectors.DefaultSelector() as selector:
        for pipe in kept:
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                held = kept[key.fileobj]  # type: ignore[index]  # registered just above
                room = max_bytes - len(held)
                truncated = truncated or len(chunk) > room
                held += chunk[: max(0, room)]
    return bytes(kept[process.stdout]), bytes(kept[process.stderr]), truncated


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what we started. It leads its own session and is not reaped yet, so its group id cannot belong to another."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
