"""What torchrun does with its ranks, without torch: `standin_launcher.py RANKS WORD…` starts RANKS times `$PYTHON_EXEC -u WORD…`.

Each in a session of its own; looked at each 0.1 s; when one fails the others get SIGTERM, after 30 s SIGKILL; all are started again up to
PET_MAX_RESTARTS times. The exit codes of each attempt go to STANDIN_REPORT, one JSON list a line.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Told(Exception):
    pass


def told(number: int, _: object) -> None:
    raise Told(number)


def start(ranks: int, restarts: int, words: list[str]) -> "list[subprocess.Popen[bytes]]":
    common = {"WORLD_SIZE": str(ranks), "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
    return [
        subprocess.Popen(
            [os.environ.get("PYTHON_EXEC", sys.executable), "-u", *words],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(ranks)
    ]


def end(processes: "list[subprocess.Popen[bytes]]", number: int, kill_after_s: float = 30) -> None:
    until = time.monotonic() + kill_after_s
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)
    while any(process.poll() is None for process in processes):
        if time.monotonic() > until:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def attempt(processes: "list[subprocess.Popen[bytes]]") -> bool:
    try:
        while True:
            codes = [process.poll() for process in processes]
            if any(codes) or None not in codes:
                break
            time.sleep(0.1)
    except Told as signalled:
        end(processes, signalled.args[0])
        sys.exit(1)
    end(processes, signal.SIGTERM)
    codes = [process.wait() for process in processes]
    if "STANDIN_REPORT" in os.environ:
        with Path(os.environ["STANDIN_REPORT"]).open("a") as report:
            report.write(json.dumps(codes) + "\n")
    return not any(codes)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, told)
    ranks, words = int(sys.argv[1]), sys.argv[2:]
    for restarts in range(1 + int(os.environ.get("PET_MAX_RESTARTS", "0"))):
        if attempt(start(ranks, restarts, words)):
            return 0
    return 1


sys.exit(main())
