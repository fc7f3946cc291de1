"""What an exchange between nodes costs: simulated nodes tell their hub a state each few seconds, and a file is fetched beside `cp`.

usage: python benchmarks/exchange.py [--nodes 1000] [--every 5] [--seconds 30] [--mb 512]

Nodes, hub, broker and `cp` share this machine: CPU is in percent of one core, latency from `tell` to the hub's record of it.
"""

import argparse
import os
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankpatrol.core.records import Missing
from rankpatrol.exchange.open import connected_within, open_exchange, parse_address
from rankpatrol.exchange.port import Exchange, Role
from rankpatrol.exchange.server import start_server
from rankpatrol.system.clock import SystemClock

STATE_BYTES = 2048
PROCESSES = 4
TICKS = os.sysconf("SC_CLK_TCK")
CLOCK = SystemClock()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--every", type=float, default=5.0)
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--mb", type=int, default=512)
    arguments.add_argument("--simulate", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.simulate:
        simulate(given.simulate, given.nodes, given.every)
        return
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="rankpatrol-exchange-") as folder:
        server, address = start_server(Path(folder) / "run")
        hub = open_exchange(address, "hub", role=Role.HUB)
        assert connected_within(hub, 10), hub.trouble()
        children = [start_nodes(address.url(secret=True), number, given.nodes // PROCESSES, given.every) for number in range(PROCESSES)]
        try:
            told = measure(hub, server.pid or 0, given.nodes // PROCESSES * PROCESSES, given.seconds)
            print(told)
            print(scattered(hub))
            print(copies(hub, Path(folder), given.mb))
        finally:
            for child in children:
                child.kill()
                child.wait()
            hub.close()
            server.stop()


def start_nodes(url: str, number: int, nodes: int, every_s: float) -> "subprocess.Popen[bytes]":
    """The address goes by standard input: it holds the secret."""
    command = [sys.executable, __file__, "--simulate", str(number), "--nodes", str(nodes), "--every", str(every_s)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(url.encode() + b"\n")
    child.stdin.close()
    return child


def simulate(number: str, nodes: int, every_s: float) -> None:
    """Many nodes in one process, each telling in its own moment of the period."""
    address = parse_address(sys.stdin.readline().strip())
    places = []
    for each in range(nodes):
        places.append(open_exchange(address, f"node-{number}-{each}", role=Role.NODE))
        if each % 50 == 0:  # one loop serves them all here
            assert connected_within(places[-1], 60), places[-1].trouble()
    big = Path(tempfile.gettempdir()) / f"rankpatrol-exchange-{os.getppid()}"
    places[0].offer("big", big)
    began, turn = time.monotonic(), 0
    while True:
        for each, place in enumerate(places):
            due = began + (turn + each / nodes) * every_s
            time.sleep(max(0.0, due - time.monotonic()))
            place.tell(struct.pack("d", CLOCK.mono_s()) + bytes(STATE_BYTES - 8))
        turn += 1


def measure(hub: Exchange, server_pid: int, nodes: int, seconds: float) -> str:
    began = time.monotonic()
    while len(hub.states()) < nodes:
        assert time.monotonic() - began < 120, f"only {len(hub.states())} of {nodes} came"
        time.sleep(0.1)
    came_s = time.monotonic() - began
    time.sleep(5)  # past the first round, in which all connect
    seen = {node: heard.heard_at_mono for node, heard in hub.states().items()}
    latencies_ms: list[float] = []
    began, ours, theirs = time.monotonic(), time.process_time(), cpu_s(server_pid)
    looking_s = 0.0
    while time.monotonic() - began < seconds:
        time.sleep(1)
        looked = time.thread_time()
        for node, heard in hub.states().items():
            if seen.get(node) != heard.heard_at_mono:
                seen[node] = heard.heard_at_mono
                latencies_ms.append(1000 * (heard.heard_at_mono - struct.unpack_from("d", heard.state)[0]))
        looking_s += time.thread_time() - looked
    took_s = time.monotonic() - began
    hub_cpu, server_cpu = time.process_time() - ours - looking_s, cpu_s(server_pid) - theirs
    cuts = statistics.quantiles(latencies_ms, n=100)
    return (
        f"{nodes} nodes: {len(latencies_ms) / took_s:.0f} states/s, all heard after {came_s:.1f} s; "
        f"latency p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, most {max(latencies_ms):.1f} ms; "
        f"hub {100 * hub_cpu / took_s:.1f} %, broker {100 * server_cpu / took_s:.1f} % of a core, {rss_mb(server_pid)} MB"
    )


def scattered(hub: Exchange) -> str:
    """To the command that nodes answer by themselves."""
    nodes = sorted(hub.states())
    took_s, answered = [], []
    cpu_began = time.process_time()
    for _ in range(3):
        began = time.monotonic()
        answers = hub.scatter(nodes, "clock", b"", 30)
        took_s.append(time.monotonic() - began)
        answered.append(sum(not isinstance(answer, Missing) for answer in answers.values()))
    cpu_ms = 1000 * (time.process_time() - cpu_began) / 3
    return (
        f"{len(nodes)} nodes asked side by side: {min(answered)} answered, the best of three within {1000 * min(took_s):.0f} ms, "
        f"{cpu_ms:.0f} ms of the hub's CPU"
    )


def copies(hub: Exchange, folder: Path, mb: int) -> str:
    source = Path(tempfile.gettempdir()) / f"rankpatrol-exchange-{os.getpid()}"
    try:
        source.write_bytes(os.urandom(1 << 20) * mb)
        best_fetch = best_cp = 0.0
        for _ in range(3):
            began = time.monotonic()
            copied = hub.fetch("node-0-0", "big", folder / "fetched", 120)
            assert not isinstance(copied, Missing), copied
            best_fetch = max(best_fetch, mb / (time.monotonic() - began))
            began = time.monotonic()
            subprocess.run([shutil.which("cp") or "cp", source, folder / "copied"], check=True)
            best_cp = max(best_cp, mb / (time.monotonic() - began))
        return f"{mb} MB, the best of three: fetched at {best_fetch:.0f} MB/s, `cp` makes {best_cp:.0f} MB/s"
    finally:
        source.unlink(missing_ok=True)


def end_in_order() -> None:
    """Let SIGTERM end a benchmark as an error would: all that it started is ended first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20


if __name__ == "__main__":
    main()
