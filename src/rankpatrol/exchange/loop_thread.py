"""The one asyncio loop of this process, in a daemon thread. Everything else here is plain threads."""

import asyncio
import atexit
import contextlib
import os
import threading

_GOES_WITHIN_S = 1.0
_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop, threading.Thread] | None = None


def shared_loop() -> asyncio.AbstractEventLoop:
    """The loop; started at the first call, and again in a forked child, which has no threads of its parent (fork(2))."""
    global _running  # ruff: ignore[PLW0603] - one a process
    with _lock:
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="exchange", daemon=True)
            thread.start()
            _running = (os.getpid(), loop, thread)
            atexit.register(_end, loop, thread)
        return _running[1]


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Tasks that are still there when the interpreter goes would complain on stderr."""

    async def leave() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=_GOES_WITHIN_S) if others else None
        loop.stop()

    if thread.is_alive():
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(leave(), loop)
        thread.join(2 * _GOES_WITHIN_S)
