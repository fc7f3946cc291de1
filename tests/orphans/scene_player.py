"""Plays random scenes of orphans and innocents, in a pid namespace of its own, and prints what went wrong as JSON.

`unshare --pid --fork --mount-proc --kill-child python scene_player.py FOLDER VICTIM SCENES SEED`, as root: it makes cgroups.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from rankpatrol.core.records import Missing
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, reap
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE, GpuProcess, GpuSeen, JobState, JobWord, Policy
from rankpatrol.orphans.scan import Scanner

ENDED, FRESH, SILENT, LIVE_A, LIVE_B = "77", "78", "79", "80", "81"
USER, OTHER = 1001, 1002
CONTAINER = "ab" * 32
RULES = ReapRules(term_s=0.1, kill_s=5.0, memory_s=0.2, kill_switches=())


class Scheduler:
    """Its word on each job."""

    def __init__(self, now_unix_s: float) -> None:
        began = now_unix_s - 3600
        self.said = {
            ENDED: JobWord(job=ENDED, state=JobState.ENDED, by="test", started_unix_s=began, ended_unix_s=now_unix_s - 600, uid=USER),
            FRESH: JobWord(job=FRESH, state=JobState.ENDED, by="test", started_unix_s=began, ended_unix_s=now_unix_s - 10, uid=USER),
            SILENT: JobWord(job=SILENT, state=JobState.UNKNOWN, by="test", why="no answer"),
            LIVE_A: JobWord(job=LIVE_A, state=JobState.LIVE, by="test", started_unix_s=began, uid=USER),
            LIVE_B: JobWord(job=LIVE_B, state=JobState.LIVE, by="test", started_unix_s=began, uid=OTHER),
        }

    def words(self, jobs):
        return {job: word for job, word in self.said.items() if job in jobs}

    def tie_of(self, process):
        return None


class Scene:
    """One scene's processes."""

    def __init__(self, folder: Path, victim: str, cgroups: Path, dice: random.Random) -> None:
        self.folder, self._victim, self._cgroups, self._dice = folder, victim, cgroups, dice
        self.devices = [folder / f"nvidia{number}" for number in range(4)]
        for device in self.devices:
            device.touch(mode=0o666)
        self._reader, self._writer = os.pipe()
        os.set_inheritable(self._writer, True)
        self.orphans: dict[int, str] = {}
        self.innocents: dict[int, str] = {}
        self._made: list[Path] = []

    def start(
        self, role: str, path: str, *, how: str = "plain", uid: int = USER, job: str = "", holds: bool = True, ended: bool = False
    ) -> int:
        """One victim in a cgroup of its own kind. `ended`: this one has to go."""
        home = self._cgroups / path.lstrip("/")
        home.mkdir(parents=True, exist_ok=True)
        self._made.append(home)
        files = [str(self._dice.choice(self.devices))] if holds else []
        environment = {"SLURM_JOB_ID": job} if job else {}
        log = self.folder / f"log.{role}.{len(self.orphans) + len(self.innocents)}"
        words = [self._victim, str(log), str(home / "cgroup.procs"), str(uid), how, str(self._writer), *files]
        pid = os.posix_spawn(self._victim, words, environment, setsigdef=range(1, 32), setsigmask=())
        assert os.read(self._reader, 1) == b"r"
        (self.orphans if ended else self.innocents)[pid] = f"{role}:{log}"
        return pid

    def wrongs(self):
        """Innocents that died or heard anything, orphans that live."""
        for pid, who in self.innocents.items():
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                yield f"innocent {who} ({pid}) is gone"
            elif heard := Path(who.split(":")[1]).read_text().split():
                yield f"innocent {who} ({pid}) heard signals {heard}"
        for pid, who in self.orphans.items():
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                yield f"orphan {who} ({pid}) lives"

    def end(self) -> None:
        os.close(self._reader)
        os.close(self._writer)
        for pid in (*self.innocents, *self.orphans):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:  # also what a victim forked: we are pid 1 here
                for folder in Path("/proc").glob("[0-9]*"):
                    if int(folder.name) > 1:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(folder.name), signal.SIGKILL)
                os.waitpid(-1, 0)
        for home in self._made:
            for each in (home, *home.parents):
                if each == self._cgroups:
                    break
                with contextlib.suppress(OSError):
                    each.rmdir()


def people(scene: Scene, dice: random.Random) -> None:
    """Two live jobs, one ended, two that may not be judged, and everybody else who can be on a node."""
    slurm = "/slurmstepd.scope"
    ended = f"{slurm}/job_{ENDED}/step_0/user/task_0"
    for _ in range(dice.randint(1, 5)):
        scene.start("orphan", ended, how=dice.choice(["plain", "plain", "deaf", "headless"]), job=dice.choice([ENDED, ""]), ended=True)
    if dice.random() < 0.3:
        stopped = scene.start("orphan-stopped", ended, ended=True)
        os.kill(stopped, signal.SIGSTOP)
    everybody = [
        lambda: scene.start("live-a", f"{slurm}/job_{LIVE_A}/step_0/user/task_0", job=LIVE_A, how=dice.choice(["deaf", "headless"])),
        lambda: scene.start("live-a-odd-env", f"{slurm}/job_{LIVE_A}/step_1/user/task_0", job=ENDED, how="deaf"),
        lambda: scene.start("live-b", f"{slurm}/job_{LIVE_B}/step_0/user/task_0", job=LIVE_B, uid=OTHER, how="deaf"),
        lambda: scene.start("tmux", "/user.slice/user-1001.slice/session-3.scope", job=ENDED, how="deaf"),
        lambda: scene.start("nohup", "/", job=ENDED, how="deaf"),
        lambda: scene.start("nohup-other", "/", job=ENDED, uid=OTHER, how="deaf"),
        lambda: scene.start("stranger", "/", uid=OTHER, how="deaf"),
        lambda: scene.start("cron", "/system.slice/cron.service", how="deaf"),
        lambda: scene.start("persistenced", "/system.slice/nvidia-persistenced.service", uid=0, how="deaf"),
        lambda: scene.start("service", "/system.slice/vllm.service", job=ENDED, how="deaf"),
        lambda: scene.start("container", f"/docker/{CONTAINER}", job=ENDED, how="deaf"),
        lambda: scene.start("fresh", f"{slurm}/job_{FRESH}/step_0/user/task_0", job=FRESH, how="deaf"),
        lambda: scene.start("silent", f"{slurm}/job_{SILENT}/step_0/user/task_0", job=SILENT, how="deaf"),
        lambda: scene.start("other-in-ended", ended, uid=OTHER, how="deaf"),
        lambda: scene.start("went-to-live", ended, job=LIVE_A, how="deaf"),
        lambda: scene.start("holds-nothing", ended, holds=False, how="deaf"),
        lambda: scene.start("adopted-ssh", f"{slurm}/job_{ENDED}/step_extern/user/task_special", how="deaf"),
        lambda: scene.start("in-d-state", ended, how="vfork"),
    ]
    dice.shuffle(everybody)
    for start in everybody[: dice.randint(6, len(everybody))]:
        start()


def lists(scene: Scene, dice: random.Random):
    """NVML's word: true, absent, scrambled as by driver 535, or naming the innocent."""
    everybody = [*scene.orphans, *scene.innocents]
    junk = dice.choice([[], [0], [4294967295], [0, 4294967295, 1184], [99_999], dice.sample(everybody, k=2)])
    if dice.random() < 0.2:
        return Missing("no NVML")
    named = tuple(GpuProcess(pid, 1 << 30) for pid in dice.sample(everybody + junk, k=dice.randint(0, len(everybody))))
    return tuple(
        GpuSeen(
            index=number,
            uuid="",
            name="stub",
            device=str(device),
            total_bytes=80 << 30,
            used_bytes=0,
            busy_percent=0,
            processes=named if number == 0 else (),
        )
        for number, device in enumerate(scene.devices)
    )


def reuse(scene: Scene, dice: random.Random) -> None:
    """A proven orphan ends by itself, and its number goes to an innocent before the release."""
    pid = dice.choice(list(scene.orphans))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    del scene.orphans[pid]
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    again = scene.start("reused-pid", f"/slurmstepd.scope/job_{ENDED}/step_0/user/task_0", how="deaf", job=ENDED)
    assert again == pid, f"the number was not made again: {again}, not {pid}"


def play(folder: Path, victim: str, cgroups: Path, seed: str) -> list[str]:
    dice = random.Random(seed)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    scene = Scene(folder, victim, cgroups, dice)
    try:
        people(scene, dice)
        gpus = lists(scene, dice)
        scanner = Scanner(
            Scheduler(time.time()), devices=(f"{folder}/nvidia*",), gpus=lambda: gpus, namespace=lambda: INITIAL_PID_NAMESPACE
        )
        patrol = OrphanPatrol(scanner, Policy(), evidence=folder / "evidence", gpus=lambda _: gpus, stack=lambda _: Missing("not here"))
        patrol.look()
        what = plan(patrol.look(), Policy())
        expected = set(scene.orphans)
        wrong = [] if {one.process.pid for one in what.orphans} == expected else [f"planned {what}, expected {expected}"]
        if dice.random() < 0.3:
            reuse(scene, dice)
        for one in reap(what, patrol, RULES):
            if not one.done and one.process.pid in scene.orphans:
                wrong.append(f"not released: {one}")
            if one.signals and not Path(one.evidence).exists():
                wrong.append(f"signalled before its evidence was kept: {one}")
        return [*wrong, *scene.wrongs()]
    finally:
        scene.end()


def main() -> None:
    folder, victim, scenes, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    mount = next(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2] == "cgroup2")
    cgroups = Path(mount) / f"rankpatrol-test-{seed}-{time.time_ns()}"
    cgroups.mkdir()
    began = time.monotonic()
    wrong, released = {}, 0
    try:
        for number in range(scenes):
            complaints = play(folder / str(number), victim, cgroups, f"{seed}:{number}")
            released += not complaints
            if complaints:
                wrong[f"{seed}:{number}"] = complaints
    finally:
        cgroups.rmdir()
    print(json.dumps({"scenes": scenes, "good": released, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
