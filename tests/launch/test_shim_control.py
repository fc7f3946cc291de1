"""The control socket by itself: what counts as a request, and from whom."""

import json
import math
import os
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.launch.shim.control import ControlSocket, end_request

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_nothing_but_an_end_request_is_one(message: bytes) -> None:
    assert end_request(message) is None


@given(JSON)
def test_a_grace_is_a_number_that_a_clock_can_count(grace: object) -> None:
    read = end_request(json.dumps({"do": "end", "grace_s": grace}).encode())
    assert read is None or (math.isfinite(read) and 0 <= read <= 3600)


def test_the_usual_grace_is_ten_seconds() -> None:
    assert end_request(b'{"do": "end"}') == 10
    assert end_request(b'{"do": "end", "grace_s": 0}') == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_users_request_is_refused_even_where_the_folder_is_open(open_folder: Path) -> None:
    path = open_folder / "sock"
    ended: list[float] = []
    dial = 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b\'{"do": "end"}\'); print(s.recv(99))'
    with selectors.DefaultSelector() as selector:
        control = ControlSocket(str(path), selector, ended.append)
        path.chmod(0o777)
        answers = []
        for user in (65534, 0):
            with subprocess.Popen(["/usr/bin/python3", "-c", dial, str(path)], user=user, stdout=subprocess.PIPE) as client:
                while client.poll() is None:
                    for key, _ in selector.select(0.05):
                        key.data()
                assert client.stdout is not None
                answers.append(client.stdout.read())
        control._server.close()
    assert answers == [b"b'{\"ok\": false}'\n", b"b'{\"ok\": true}'\n"]
    assert ended == [10]
