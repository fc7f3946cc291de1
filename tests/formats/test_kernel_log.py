"""The kernel's own word of a kill for want of memory."""

from rankpatrol.formats.kernel_log import kills


def test_both_forms_of_the_oom_killer_are_read():
    text = (
        "[ 12.5] Out of memory: Killed process 77 (python3) total-vm:1kB\n"
        "[ 13.0] Memory cgroup out of memory: Killed process 78 (python3) total-vm:2kB\n"
        "[ 13.1] usb 1-1: new device\n"
    )
    assert {pid: line[:7] for pid, line in kills(text).items()} == {77: "[ 12.5]", 78: "[ 13.0]"}
