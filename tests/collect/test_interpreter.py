"""Whether Python answers: torch's own worker server in a process whose main thread loops in Python, or keeps the lock in C."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from rankpatrol.collect.interpreter import gives_lock
from rankpatrol.core.records import Missing

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(90)]
LOOPS = "while True:\n    pass"
KEEPS = "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')"
SERVES = "import sys, torch.distributed as d\nfrom torch._C._distributed_c10d import _WorkerServer\ns = _WorkerServer(sys.argv[1])\n"


@contextmanager
def rank(path, does):
    code = f"{SERVES}print('ready', flush=True)\n{does}"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(("does", "gives"), [(LOOPS, True), (KEEPS, False)])
def test_a_loop_of_python_gives_the_lock_and_c_code_does_not(tmp_path, does, gives):
    with rank(tmp_path / "s", does):
        assert gives_lock(str(tmp_path / "s"), 10.0 if gives else 1.0) is gives


def test_where_nobody_serves_nothing_is_known(tmp_path):
    assert isinstance(gives_lock(str(tmp_path / "s"), 1.0), Missing)
