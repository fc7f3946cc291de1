"""F20: the disk becomes full while a checkpoint is written; the ones before it are whole."""

import ctypes
import os
import sys
from pathlib import Path

import msgspec

from rankpatrol.core.errors import CommandFailed
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.scene import SAVE_EVERY_STEPS, Scene
from rankpatrol.drill.truth import Truth, read_truth, write_truth
from rankpatrol.system.command import run

_NEW_MOUNTS = 0x20000  # CLONE_NEWNS of unshare(2)
_PRIVATE, _DETACH = 0x44000, 2  # MS_REC | MS_PRIVATE of mount(2); MNT_DETACH of umount2(2)
_SIZE_BYTES, _LEFT_BYTES = 24 << 20, 300_000  # a checkpoint takes 1 MB


class DiskFull(Fault):
    """The folder of checkpoints is a small file system, which something else fills up but for a third of a checkpoint.

    It is mounted for this process and what it starts alone: it is gone with them, whatever happens.
    """

    id = "F20"
    verdict = "stop"
    causes = ("disk_full",)
    expects = Expectation.KEEPS
    in_log_tail = "unexpected pos"

    def __init__(self) -> None:
        self._scene: Scene | None = None
        self._good_step = 0

    def prepare(self, scene: Scene) -> dict[str, str]:
        libc = ctypes.CDLL(None, use_errno=True)
        place, options = os.fsencode(scene.checkpoints), f"size={_SIZE_BYTES}".encode()
        failed = (
            libc.unshare(_NEW_MOUNTS)
            or libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None)
            or libc.mount(b"drill", place, b"tmpfs", ctypes.c_ulong(0), options)
        )
        if failed:
            raise CommandFailed(f"a small disk cannot be mounted: {os.strerror(ctypes.get_errno())}", help="Run this drill as root.")
        self._scene = scene
        return {}

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._good_step or moment.step < scene.step or moment.step % SAVE_EVERY_STEPS > SAVE_EVERY_STEPS / 2:
            return
        self._good_step = scene.newest_checkpoint_step()
        room = os.statvfs(scene.checkpoints)
        (scene.checkpoints / "trace.json").write_bytes(bytes(room.f_bavail * room.f_frsize - _LEFT_BYTES))
        # The save comes after its step's own line.
        write_truth(scene.truth, Truth(rank=0, step=self._good_step + SAVE_EVERY_STEPS + 1))

    def clear(self) -> None:
        if (scene := self._scene) is None:
            return
        self._scene = None
        told = read_truth(scene.truth)
        if isinstance(told, Truth):
            write_truth(scene.truth, msgspec.structs.replace(told, harmed=self._wrong(scene)))
        ctypes.CDLL(None).umount2(os.fsencode(scene.checkpoints), _DETACH)

    def _wrong(self, scene: Scene) -> tuple[str, ...]:
        """By the commands that a user has: which checkpoint is the newest good one, and what is said of the torn one."""
        good = scene.checkpoints / f"step_{self._good_step:06d}.pt"
        latest = _rankpatrol("latest", scene.checkpoints)
        torn = [path for path in scene.checkpoints.iterdir() if path.name.startswith(f"step_{self._good_step + SAVE_EVERY_STEPS:06d}")]
        wrong = [] if good.name in latest else [f"the last good checkpoint, {good.name} (`checkpoints latest`: {latest.strip()[:200]})"]
        if not torn:
            return (*wrong, "a torn checkpoint, which is not there")
        accepted = [path.name for path in torn if '"incomplete"' not in (said := _rankpatrol("verify", path)) and '"corrupt"' not in said]
        return (*wrong, *(f"{name}, which is torn and was not told so" for name in accepted))


def _rankpatrol(word: str, path: Path) -> str:
    done = run([sys.executable, "-m", "rankpatrol", "checkpoints", word, "--json", str(path)], deadline_s=60)
    return (done.stdout + done.stderr).decode(errors="replace")
