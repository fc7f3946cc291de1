"""N5: rank 0 downloads from a slow server, while the others wait in a barrier before the first step."""

import contextlib
import socket
import threading

from rankpatrol.drill.faults.n4 import PreparesFiles
from rankpatrol.drill.scene import Scene

_BYTES, _EVERY_S = 50, 0.5


class SlowDownload(PreparesFiles):
    """A hundred bytes a second: far below any threshold on what a process reads."""

    id = "N5"
    do = "download"

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._over = threading.Event()

    def prepare(self, scene: Scene) -> dict[str, str]:
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()
        return super().prepare(scene)

    def more(self) -> dict[str, object]:
        return {"port": self._server.getsockname()[1] if self._server else 0}

    def clear(self) -> None:
        self._over.set()
        if self._server is not None:
            self._server.close()

    def _serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client, or the drill, is over
            client, _ = server.accept()
            with client:
                for _ in range(int(self.lasts_s / _EVERY_S)):
                    client.sendall(bytes(_BYTES))
                    if self._over.wait(_EVERY_S):
                        return
