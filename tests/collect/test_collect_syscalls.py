import pytest

from rankpatrol.collect.syscalls import call_arguments, call_name


@pytest.mark.parametrize(
    ("number", "x86_64", "aarch64"),
    [
        (0, "read", "syscall_0"),
        (7, "poll", "syscall_7"),
        (202, "futex", "accept"),
        (257, "openat", "syscall_257"),
        (63, "syscall_63", "read"),
    ],
)
def test_a_number_means_another_call_on_another_machine(number: int, x86_64: str, aarch64: str) -> None:
    assert (call_name(number, "x86_64"), call_name(number, "aarch64")) == (x86_64, aarch64)


def test_an_unknown_number_or_machine_is_said_as_it_is() -> None:
    assert call_name(9999, "x86_64") == "syscall_9999"
    assert call_name(0, "riscv64") == "syscall_0"


def test_each_call_knows_which_argument_leads_to_a_file() -> None:
    assert (call_arguments("read").fd, call_arguments("openat").dir, call_arguments("openat").path) == (0, 0, 1)
    assert call_arguments("pread64").at == 3
    assert call_arguments("futex").fd is None
    assert call_arguments("syscall_9999").path is None
