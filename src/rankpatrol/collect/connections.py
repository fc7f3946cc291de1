"""How many bytes the TCP connections of processes have received and got rid of: the only trace of a transfer that trickles."""

import socket
import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address
from pathlib import Path

from rankpatrol.collect.procfs import ProcessDirectory, opened
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import SocketBytes

# sock_diag(7) and linux/inet_diag.h: one dump of all connections that may carry data, each with its TCP_INFO.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_WITH_TCP_INFO, _TCP_INFO = 1 << 1, 2
_STATES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8  # established, the two fin-waits, close-wait (linux/tcp_states.h)
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_ROW = struct.Struct("=B3x2s2s16s16s12x16xI")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR, _DONE = 2, 3
# In struct tcp_info (linux/tcp.h): tcpi_retransmits, _unacked, _rtt in us, _total_retrans, and since Linux 4.1 _bytes_acked and
# _bytes_received.
_RETRANSMITS_AT, _UNACKED_AT, _RTT_AT, _REPEATED_AT, _ACKED_AT, _RECEIVED_AT = 2, 24, 68, 100, 120, 128
_ANSWER_S = 0.5


def connections_of(pids: Iterable[int]) -> dict[int, tuple[SocketBytes, ...] | Missing]:
    """By process id: its TCP connections. Missing for one of another user or network namespace, and where the kernel gives no answer."""
    try:
        rows = {row.inode: row for family in (socket.AF_INET, socket.AF_INET6) for row in _dump(family)}
    except OSError as problem:
        why = Missing(f"the kernel lists no connections: {problem.strerror or problem}")
        return dict.fromkeys(pids, why)
    ours = str(Path("/proc/self/ns/net").readlink())
    return {pid: _of_process(pid, ours, rows) for pid in pids}


def _of_process(pid: int, namespace: str, rows: dict[int, SocketBytes]) -> tuple[SocketBytes, ...] | Missing:
    with opened(pid) as process:
        if isinstance(process, Missing):
            return process
        where, names = process.link("ns/net"), process.entries("fd")
        if isinstance(where, Missing):
            return where
        if where != namespace:
            return Missing(f"process {pid} lives in another network namespace")
        if isinstance(names, Missing):
            return names
        inodes = {inode for name in names if (inode := _socket_inode(process, name)) is not None}
    return tuple(rows[inode] for inode in sorted(inodes & rows.keys()))


def _socket_inode(process: ProcessDirectory, descriptor: str) -> int | None:
    link = process.link(f"fd/{descriptor}")
    return int(link[8:-1]) if isinstance(link, str) and link.startswith("socket:[") else None


def _dump(family: int) -> Iterator[SocketBytes]:
    """All TCP connections of our network namespace. Raises OSError."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, _WITH_TCP_INFO, _STATES)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        while True:
            answer = memoryview(kernel.recv(1 << 16))
            while len(answer) >= _HEADER.size:
                length, kind, *_ = _HEADER.unpack_from(answer)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", answer, _HEADER.size)[0], "sock_diag refused")
                yield _row(answer[_HEADER.size : length])
                answer = answer[(length + 3) & ~3 :]


def _row(message: memoryview) -> SocketBytes:
    family, local_port, remote_port, local, remote, inode = _ROW.unpack_from(message)
    info = _tcp_info(message)

    def number(at: int, form: str = "=I") -> int:
        return int(struct.unpack_from(form, info, at)[0]) if info else 0

    return SocketBytes(
        inode=inode,
        local=_address(family, local, local_port),
        remote=_address(family, remote, remote_port),
        received_bytes=number(_RECEIVED_AT, "=Q"),
        unacked_segments=number(_UNACKED_AT),
        retransmits=number(_RETRANSMITS_AT, "=B"),
        round_trip_s=number(_RTT_AT) / 1e6,
        repeated_segments=number(_REPEATED_AT),
        acked_bytes=number(_ACKED_AT, "=Q"),
    )


def _tcp_info(message: memoryview) -> memoryview:
    """The connection's TCP_INFO; empty where the kernel gave none, or an older one."""
    at = _ROW.size
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _TCP_INFO and length >= _ATTRIBUTE.size + _RECEIVED_AT + 8:
            return message[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return message[:0]


def _address(family: int, raw: bytes, port: bytes) -> str:
    """`10.0.0.1:29500`; an IPv4 address that wears IPv6's clothes is the same host."""
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, raw[:4])}:{number}"
    mapped = IPv6Address(raw).ipv4_mapped
    return f"{mapped}:{number}" if mapped else f"[{IPv6Address(raw)}]:{number}"
