"""Commands that train by themselves, and those that start ranks below shims."""

from pathlib import Path

import pytest

from rankpatrol.launch.plain_command import is_plain

PLAIN = [
    "python train.py {checkpoint}",
    "python3.11 -u -W ignore train.py --launcher srun",
    "/env/bin/python -X dev -m my.train --resume {checkpoint}",
    "python -c pass bash",
    "python",
    "./train.py {checkpoint}",
    "env LEVEL=1 python train.py",
    "/bin/echo {checkpoint}",
]
STARTING = [
    "torchrun train.py {checkpoint}",
    "python -m torch.distributed.run train.py",
    "python -mtorch.distributed.launch train.py",
    "python -u -m accelerate.commands.launch train.py",
    "python /env/bin/accelerate launch train.py",
    "python -m rankpatrol shim -- python train.py",
    "srun rankpatrol shim -- python train.py",
    "mpirun -n 2 rankpatrol shim -- python train.py",
    "bash -c true",
    "./start.sh {checkpoint}",
    "env LEVEL=1 torchrun train.py",
    "nice ./start.sh",
    "no-such-program {checkpoint}",
]


@pytest.mark.parametrize("command", PLAIN)
def test_a_program_that_trains_by_itself_is_plain(command: str) -> None:
    assert is_plain(command.split())


@pytest.mark.parametrize("command", STARTING)
def test_what_may_start_shims_is_not(command: str) -> None:
    assert not is_plain(command.split())


def test_a_script_by_any_name_may_start_shims(tmp_path: Path) -> None:
    script = tmp_path / "launch"
    script.write_text("#!/usr/bin/env python\n")
    script.chmod(0o755)
    assert not is_plain([str(script), "{checkpoint}"])
