"""A healthy training of somebody else on the same node: it must go on as if nobody had been there."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from rankpatrol.drill.events import Event, EventFile
from rankpatrol.drill.runner import Settings, environment, kept, patrol_command
from rankpatrol.drill.scene import Scene, build

_RANKS, _STEPS = 2, 220
_ENDS_S = 180.0
_WRONG = frozenset({"hang", "crash"})


class Neighbour:
    """Its processes belong to another user where we may become one (root), else to ours. Its folder is gone when it has ended."""

    def __init__(self) -> None:
        self._folder = Path()
        self._scene = Scene(folder=Path(), ranks=_RANKS, rank=0, step=_STEPS, steps=_STEPS)
        self._kept: AbstractContextManager[subprocess.Popen[bytes]] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self.job = Path()

    def start(self, *, patrolled: bool) -> int:
        """Start it, under a `rankpatrol run` of its own or under nobody. Returns the pid above all that it started."""
        self._folder = Path(tempfile.mkdtemp(prefix="neighbour-"))
        self._scene = msgspec.structs.replace(self._scene, folder=self._folder / "its")
        self.job = self._scene.job
        self._scene.folder.mkdir()
        build(self._scene)
        plain = [word.replace("{checkpoint}", "") for word in self._scene.training()]
        command = patrol_command(self._scene, Settings()) if patrolled else plain
        home = {"HOME": str(self._scene.folder), "RANKPATROL_STATE_DIR": str(self._scene.folder / "state")}
        self._kept = kept(
            [*_as_another_user(self._folder), *command],
            environment(home),
            left_file=self._folder / "left.txt",
            output=self._folder / "output.txt",
        )
        self._keeper = self._kept.__enter__()
        return self._keeper.pid

    def end(self, *, kept_at: Path) -> tuple[str, ...]:
        """Wait for its good end, and say what was done to it. What the patrol wrote of it is left below `kept_at`."""
        if self._keeper is None or self._kept is None:
            return ()
        try:
            code: int | None = self._keeper.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            code = None
        self._kept.__exit__(None, None, None)
        self._keeper = None
        journal = EventFile(self.job / "events.jsonl")
        journal.look()
        harm = tuple(self._harm(code, journal.events))
        if self.job.is_dir() and self._folder in self.job.parents:
            shutil.copytree(self.job, kept_at / "neighbour")
        shutil.rmtree(self._folder)
        return harm

    def _harm(self, code: int | None, events: list[Event]) -> Iterator[str]:
        if code != 0 or not self._scene.last_checkpoint.exists():
            yield f"the neighbour's training (exit code {code})"
        if not events:
            yield "the neighbour's job (nobody watched it)"
        for event in events:
            if event.kind == "action" or (event.kind == "verdict" and event.verdict in _WRONG):
                yield f"the neighbour's job ({event.kind} {event.what or event.cause})"


def _as_another_user(folder: Path) -> list[str]:
    """The words before a command that give it to somebody else, who then owns `folder` as well.

    Where our Python lies below a folder of ours alone, they may read everything, and still touch nobody's process.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    other = pwd.getpwnam("nobody")
    for place in (folder, *folder.rglob("*")):
        os.chown(place, other.pw_uid, other.pw_gid)
    hidden = any(not parent.stat().st_mode & stat.S_IXOTH for parent in Path(sys.executable).resolve().parents)
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"] if hidden else []
    return ["setpriv", f"--reuid={other.pw_uid}", f"--regid={other.pw_gid}", "--clear-groups", *reads, "--"]
