"""The TCP sockets of given processes: who they talk to, and how many bytes wait in each queue."""

import contextlib
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankpatrol.core.records import Missing

# include/net/tcp_states.h
_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
    12: "NEW_SYN_RECV",
}
_INODE = re.compile(r"socket:\[(\d+)\]")


def sockets_of(pids: Sequence[int]) -> dict[str, Any]:
    """By process id: its TCP sockets, or Missing. Each process is read in its own network namespace."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    return {str(pid): _sockets(pid, tables) for pid in pids}


def _sockets(pid: int, tables: dict[str, dict[str, dict[str, Any]]]) -> list[dict[str, Any]] | Missing:
    try:
        namespace = str(Path(f"/proc/{pid}/ns/net").readlink())
        if namespace not in tables:
            tables[namespace] = dict(_table(pid))
        inodes = dict(_inodes(pid))
    except PermissionError:
        return Missing(f"/proc/{pid}/fd may not be read: it belongs to another user")
    except OSError as problem:
        return Missing(f"/proc/{pid}: {problem.strerror}")
    return [{"fd": fd, **tables[namespace][inode]} for fd, inode in sorted(inodes.items()) if inode in tables[namespace]]


def _inodes(pid: int) -> Iterator[tuple[int, str]]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # A descriptor may be closed between the listing and the look.
        with contextlib.suppress(FileNotFoundError):
            if found := _INODE.match(str(entry.readlink())):
                yield int(entry.name), found[1]


def _table(pid: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """One row a socket of /proc/PID/net/tcp and tcp6, by inode (proc_pid_net(5))."""
    for name in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for row in rows:
            fields = row.split()
            sending, receiving = fields[4].split(":")
            yield (
                fields[9],
                {
                    "local": address(fields[1]),
                    "remote": address(fields[2]),
                    "state": _STATES.get(int(fields[3], 16), "UNKNOWN"),
                    "tx_queue_bytes": int(sending, 16),
                    "rx_queue_bytes": int(receiving, 16),
                    "retransmits": int(fields[6], 16),
                },
            )


def address(text: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`: the kernel prints each 32-bit word in the machine's own byte order."""
    words, port = text.split(":")
    raw = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
