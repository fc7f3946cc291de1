"""Facts about the machine come in time or are Missing; nothing that hangs holds the patrol up."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing
from rankpatrol.evidence import host
from rankpatrol.evidence.sockets import address, sockets_of


def test_every_fact_is_there_or_missing_with_a_reason() -> None:
    facts = host.host_facts([os.getpid()], [Path("/")])
    assert set(facts) == {"kernel_log", "pressure", "memory", "mounts", "disks", "load", "sockets", "gpus"}
    assert all(fact.reason for fact in facts.values() if isinstance(fact, Missing))
    assert facts["memory"]["machine"]["MemTotal"].endswith(" kB")
    assert facts["disks"]["/"]["size_bytes"] > 0
    assert "/" in {mount["where"] for mount in facts["mounts"]}
    assert facts["load"]["cpus"] == os.cpu_count()


def test_fact_that_never_comes_is_left_behind() -> None:
    never = threading.Event()
    began = time.monotonic()
    facts = host.within({"slow": never.wait, "quick": lambda: 1}, 0.2)
    never.set()
    assert facts == {"slow": Missing("was not done after 0.2 s"), "quick": 1}
    assert time.monotonic() - began < 5


def test_fact_that_fails_says_why() -> None:
    def refused() -> None:
        raise CommandFailed("cannot start nvidia-smi: No such file or directory")

    assert host.within({"gpus": refused}, 5) == {"gpus": Missing("cannot start nvidia-smi: No such file or directory")}


HUNG_MOUNT = """
import ctypes, os, sys, time
from pathlib import Path
from rankpatrol.evidence.host import disks, mounts

where = Path(sys.argv[1])
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead-server", str(where).encode(), b"fuse", 0, options) != 0:
    sys.exit(f"no fuse mounts here: {os.strerror(ctypes.get_errno())}")
began = time.monotonic()
found = disks([where], deadline_s=0.5)
print(found[str(where)].reason, [mount["source"] for mount in mounts() if mount["where"] == str(where)], sep="|")
print(f"{time.monotonic() - began:.1f}", flush=True)
os.close(fuse)
"""


def test_mount_whose_server_does_not_answer_is_missing_in_time(tmp_path: Path) -> None:
    """A file system in user space that nobody serves: statfs(2) on it waits as on a dead NFS server."""
    result = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", HUNG_MOUNT, tmp_path], capture_output=True, text=True, timeout=15, check=False
    )
    if "no fuse mounts" in result.stderr or "unshare" in result.stderr or "/dev/fuse" in result.stderr:
        pytest.skip(result.stderr)
    said, seconds = result.stdout.splitlines()
    assert said == "stat was not done after 0.5 s|['dead-server']"
    assert float(seconds) < 4


def test_disk_that_is_not_there_is_missing() -> None:
    found = host.disks([Path("/no/such/place")])
    assert "No such file" in found["/no/such/place"].reason


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'GPU 0: NVIDIA H100'", "GPU 0: NVIDIA H100"),
        ("echo 'GPU is lost'; exit 15", "nvidia-smi ended with 15\nGPU is lost"),
    ],
)
def test_words_of_nvidia_smi_are_kept_even_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert host.gpus() == expected


def test_nvidia_smi_that_hangs_is_over_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(CommandFailed, match="nvidia-smi was not done after"):
        host.gpus(deadline_s=0.3)


def test_machine_without_nvidia_smi_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.gpus() == Missing("no nvidia-smi on PATH")


def test_kernel_log_line_keeps_its_time_and_text() -> None:
    record = "4,1234,5678901,-;nfs: server store-3 not responding; still trying\n SUBSYSTEM=net\n"
    assert host._kernel_line(record) == "[    5.678901] nfs: server store-3 not responding; still trying"


def test_kernel_log_that_cannot_be_read_is_missing(tmp_path: Path) -> None:
    assert host.kernel_log(tmp_path / "kmsg") == Missing(f"{tmp_path / 'kmsg'}: No such file or directory")


def test_kernel_without_pressure_accounting_is_missing(tmp_path: Path) -> None:
    assert isinstance(host.pressure(tmp_path / "pressure"), Missing)


def test_mount_point_with_a_blank_is_read_whole(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("36 35 98:0 / /mnt/my\\040data rw,noatime shared:1 master:2 - nfs4 store-3:/export rw,vers=4.2,hard\n")
    assert host.mounts(table) == [
        {"where": "/mnt/my data", "type": "nfs4", "source": "store-3:/export", "options": "rw,noatime,rw,vers=4.2,hard"}
    ]


def test_bytes_that_wait_in_a_socket_are_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"x" * 1000)
            rows = {row["fd"]: row for row in sockets_of([os.getpid()])[str(os.getpid())]}
            port, peer = server.getsockname()[1], client.getsockname()[1]
            assert rows[server.fileno()]["state"] == "LISTEN"
            assert rows[accepted.fileno()]["rx_queue_bytes"] == 1000
            assert rows[accepted.fileno()]["local"] == f"127.0.0.1:{port}"
            assert rows[accepted.fileno()]["remote"] == f"127.0.0.1:{peer}"
            assert rows[client.fileno()]["state"] == "ESTABLISHED"


def test_process_that_is_gone_has_missing_sockets() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert isinstance(sockets_of([child.pid])[str(child.pid)], Missing)


def test_address_of_version_6_is_read_word_by_word() -> None:
    ends_in_1 = "00000001" if sys.byteorder == "big" else "01000000"
    assert address(f"{'0' * 24}{ends_in_1}:1F90") == "[::1]:8080"
