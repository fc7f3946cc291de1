"""What is told of a process that no signal ends."""

from pathlib import Path

import pytest
from orphan_scenes import after, process, scan, word

from rankpatrol.orphans.explain import FuseConnection, Mounts, explain
from rankpatrol.orphans.kernel_state import read_mounts

MOUNTS = Mounts(fuse=(FuseConnection(52, "/data", 7), FuseConnection(53, "/idle", 0)), nfs=("/home",))


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("request_wait_answer", "/data has 7 requests waiting; `echo 1 > /sys/fs/fuse/connections/52/abort`"),
        ("fuse_dev_do_read", "operator's decision"),
        ("rpc_wait_bit_killable", "an NFS server (/home)"),
        ("nfs_wait_bit_killable", "umount -f"),
        ("uvm_va_space_destroy", "drain the node, then reset the GPU"),
        ("os_acquire_mutex", "drain the node, then reset the GPU"),
        ("percpu_rwsem_wait", "percpu_rwsem_wait"),
        ("0", "drain the node and reboot"),
    ],
)
def test_the_place_in_the_kernel_says_what_to_do(channel: str, words: str) -> None:
    judged = after(scan(process(state="D", wait_channel=channel), jobs=[word()]))[0]
    told = explain(judged, MOUNTS)
    assert told.startswith("No signal can end it.")
    assert words in told


def test_a_fuse_mount_that_is_not_found_is_looked_for_by_hand() -> None:
    judged = after(scan(process(state="D", wait_channel="request_wait_answer"), jobs=[word()]))[0]
    assert "grep -r" in explain(judged, Mounts())


def test_mounts_are_read_from_the_kernels_list_alone(tmp_path: Path) -> None:
    mountinfo, connections = tmp_path / "mountinfo", tmp_path / "connections"
    (connections / "52").mkdir(parents=True)
    (connections / "52" / "waiting").write_text("7\n")
    mountinfo.write_text(
        "36 35 0:52 / /data\\040one rw,noatime shared:1 - fuse.sshfs host: rw\n"
        "37 35 0:60 / /home rw - nfs4 server:/home rw\n"
        "38 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "broken line\n"
    )
    assert read_mounts(mountinfo, connections) == Mounts(fuse=(FuseConnection(52, "/data one", 7),), nfs=("/home",))
    assert read_mounts(tmp_path / "none", connections) == Mounts()
