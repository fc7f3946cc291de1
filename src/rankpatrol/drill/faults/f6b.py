"""F6b: a loader process is blocked for ever in reading, or opening, one shard file."""

import os
from pathlib import Path

from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.ranks import loader_processes
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth

# wait_for_partner(), fs/pipe.c: where open(2) of a FIFO waits for the other end, see fifo(7).
_OPEN_WAITS = "wait_for_partner"


class LoaderBlockedInRead(Fault):
    """The block of the drawn rank and step is a FIFO that holds half of it, while the other end stays open: as storage that stops."""

    id = "F6b"
    verdict = "hang"
    causes = ("data_loader_worker_stuck",)
    expects = Expectation.RECOVERS

    def __init__(self) -> None:
        self._held_fd: int | None = None
        self._struck = False

    def prepare(self, scene: Scene) -> dict[str, str]:
        block = scene.block()
        block.rename(_kept(scene))
        os.mkfifo(block)
        self._feed(block, _kept(scene).read_bytes())
        return {}

    def strike(self, scene: Scene, moment: Moment) -> None:
        """Note the loader process that waits. It reads ahead, so this comes before its rank misses the block: the onset is not now."""
        if not self._struck and (pid := _waiting_loader(scene, moment.keeper_pid)) is not None:
            write_truth(scene.truth, Truth(rank=scene.rank, step=scene.step, pids=(pid,)))
            self._struck = True

    def heal(self, scene: Scene) -> None:
        """The path leads to the real block again. A reader of the FIFO stays blocked: it holds the old inode, and so do we."""
        if _kept(scene).exists():
            _kept(scene).replace(scene.block())

    def clear(self) -> None:
        if self._held_fd is not None:
            os.close(self._held_fd)
            self._held_fd = None

    def _feed(self, block: Path, data: bytes) -> None:
        # Read-write, since that does not wait for a reader (fifo(7)). Half of a block fits into the pipe, so neither does the write.
        self._held_fd = os.open(block, os.O_RDWR | os.O_CLOEXEC)
        os.write(self._held_fd, data[: len(data) // 2])


class LoaderBlockedInOpen(LoaderBlockedInRead):
    """The same with nobody at the other end, so that already the open() waits: as a mount that does not answer."""

    id = "F6b-open"

    def _feed(self, block: Path, data: bytes) -> None:
        """Nobody feeds it."""


def _kept(scene: Scene) -> Path:
    return scene.folder / "truth" / scene.block().name


def _waiting_loader(scene: Scene, keeper_pid: int) -> int | None:
    for process in loader_processes(keeper_pid, scene.rank):
        try:
            if _waits(Path(f"/proc/{process.pid}"), scene.block()):
                return process.pid
        except OSError:
            continue
    return None


def _waits(folder: Path, block: Path) -> bool:
    if (folder / "wchan").read_text() == _OPEN_WAITS:
        return True
    return any(link.readlink() == block for link in (folder / "fd").iterdir())
