"""A job on several hosts of this one machine, each with its own network, name and processes: `make drill-cluster` (root).

`drill_cluster.py [SCENE…] [--hosts 4] [--per-host 8] [--runs 1]`. The injector knows the truth and reads nothing of the patrol's; the
events are read only to know when to heal, and to score.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

from rankpatrol.drill.scene import Scene, build

HOSTS = Path(__file__).parents[1] / "schedulers" / "hosts.sh"
ALL_S = 420.0
BARS_S = {"F6b": 20.0, "F12": 15.0, "F15": 30.0, "F16": 180.0}


class Machines:
    """N hosts, up while this is entered."""

    def __init__(self, count: int, tag: str) -> None:
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self._env = {**os.environ, "FIX": f"rq{tag}", "DIR": f"/tmp/rq{tag}-hosts"}

    def __enter__(self) -> Self:
        self.call("up", str(len(self.names)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
                self.signal_all(name, signal.SIGCONT)
        self.call("down")

    def call(self, *words: str) -> str:
        return subprocess.run([str(HOSTS), *words], env=self._env, check=True, capture_output=True, text=True).stdout.strip()

    def start(self, name: str, command: list[str], env: dict[str, str], output: Path) -> "subprocess.Popen[bytes]":
        with output.open("ab") as sink:
            return subprocess.Popen(
                [str(HOSTS), "exec", name, *command], env={**self._env, **env}, stdout=sink, stderr=sink, start_new_session=True
            )

    def init_of(self, name: str) -> int:
        return int(self.call("pid", name))

    def processes(self, name: str) -> list[int]:
        """All processes of a host but its init, by the pids they have here."""
        init = self.init_of(name)
        namespace = _namespace(init)
        return [pid for pid in _pids() if pid != init and _namespace(pid) == namespace]

    def host_of(self, pid: int) -> str:
        return next(name for name in self.names if _namespace(pid) == _namespace(self.init_of(name)))

    def signal_all(self, name: str, number: signal.Signals) -> None:
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def on_wire(self, name: str, *words: str) -> None:
        """A command of `tc` or `ip` on the host's end of its cable."""
        subprocess.run(["ip", "netns", "exec", f"{self._env['FIX']}-{name}", *words], check=True, capture_output=True)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _namespace(pid: int) -> str:
    """The pid namespace of a process; empty where it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


@dataclass
class Play:
    """One run, and what its injector knows."""

    scene: Scene
    machines: Machines
    per_host: int
    truth: dict[str, object] = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    fifo: int | None = None

    def of(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["kind"] == kind]

    def read(self) -> None:
        path = self.scene.job / "events.jsonl"
        with contextlib.suppress(OSError):
            self.events = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def step(self) -> int:
        return max((event["step"] for event in self.of("progress")), default=0)

    def node_of_rank(self, rank: int) -> str:
        return self.of("attempt_started")[-1]["ranks"][str(rank)]["node"]


class BadBlock:
    """F6b: one rank's loader is blocked in reading one shard file; the scene this project began with."""

    id, ends, elastic = "F6b", "recovers", False

    def prepare(self, play: Play) -> None:
        block = play.scene.block()
        block.rename(block.with_name("kept"))
        os.mkfifo(block)
        play.fifo = os.open(block, os.O_RDWR | os.O_CLOEXEC)
        os.write(play.fifo, block.with_name("kept").read_bytes()[:100])

    def strike(self, play: Play) -> None:
        """Nothing to do but to note who waits, by what the kernel and the training itself say."""
        if "rank" in play.truth:
            return
        block = str(play.scene.block())
        for pid in _pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "pt_data_worker" and block in _open_files(pid):
                    inside = next(
                        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid")
                    ).split()[-1]
                    play.truth.update(rank=play.scene.rank, host=play.machines.host_of(pid), pid=int(inside), file=block)

    def onset(self, play: Play) -> float | None:
        """The last step that all ranks took."""
        before = [event["at_unix_s"] for event in play.of("progress") if event["step"] == play.scene.step - 1 and event["attempt"] == 0]
        told = [event["at_unix_s"] for event in play.of("progress") if event["step"] < play.scene.step and event["attempt"] == 0]
        return before[0] if before else max(told, default=None)

    def heal(self, play: Play) -> None:
        kept = play.scene.block().with_name("kept")
        if kept.exists():
            kept.replace(play.scene.block())

    def check(self, play: Play, verdict: dict) -> Iterator[str]:
        if verdict["cause"] != "data_loader_worker_stuck":
            yield f"cause {verdict['cause']}"
        if verdict["culprit_ranks"] != [play.scene.rank]:
            yield f"named {verdict['culprit_ranks']}, not {play.scene.rank}"
        for what in ("host", "pid", "file"):
            if str(play.truth.get(what, "?")).rpartition("/")[2] not in verdict["sentence"]:
                yield f"the sentence does not name its {what} ({play.truth.get(what)})"


class HostFrozen:
    """F12: every process of a host stands, its agent as well."""

    id, ends, elastic = "F12", "named", False

    def prepare(self, play: Play) -> None:
        """Nothing."""

    def strike(self, play: Play) -> None:
        if "host" in play.truth or play.step() < play.scene.step:
            return
        host = play.node_of_rank(play.scene.rank)
        if host == play.of("attempt_started")[-1]["ranks"]["0"]["node"] or host == "n1":
            host = next(name for name in play.machines.names if name != "n1" and name != play.node_of_rank(0))
        ranks = [int(rank) for rank, place in play.of("attempt_started")[-1]["ranks"].items() if place["node"] == host]
        play.truth.update(host=host, ranks=sorted(ranks), at=time.time())
        self.freeze(play, host)

    def freeze(self, play: Play, host: str) -> None:
        play.machines.signal_all(host, signal.SIGSTOP)

    def onset(self, play: Play) -> float | None:
        return play.truth.get("at")

    def heal(self, play: Play) -> None:
        """It stays frozen: nobody can end what stands there."""

    def check(self, play: Play, verdict: dict) -> Iterator[str]:
        if verdict["cause"] != "node_missing":
            yield f"cause {verdict['cause']}"
        if verdict["culprit_ranks"] != play.truth["ranks"]:
            yield f"named {verdict['culprit_ranks']}, not {play.truth['ranks']}"
        if str(play.truth["host"]) not in verdict["sentence"]:
            yield "the sentence does not name the host"


class CableCut(HostFrozen):
    """F15: a host's cable is pulled."""

    id = "F15"

    def freeze(self, play: Play, host: str) -> None:
        play.machines.call("cut", host)

    def check(self, play: Play, verdict: dict) -> Iterator[str]:
        if verdict["cause"] != "link_down":
            yield f"cause {verdict['cause']}"
        if str(play.truth["host"]) not in verdict["sentence"]:
            yield "the sentence does not name the host"


class Elastic:
    """N10: a host leaves for good, and the job goes on with fewer ranks: a restart, no hang."""

    id, ends, elastic = "N10", "silent", True

    def prepare(self, play: Play) -> None:
        """Nothing."""

    def strike(self, play: Play) -> None:
        if "host" in play.truth or play.step() < play.scene.step:
            return
        host = next(name for name in reversed(play.machines.names) if name != play.node_of_rank(0))
        play.truth.update(host=host, at=time.time())
        for pid in play.machines.processes(host):  # as a preemption does: in order
            with contextlib.suppress(OSError):
                if b"rankpatrol\0run" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGTERM)

    def onset(self, play: Play) -> float | None:
        return play.truth.get("at")

    def heal(self, play: Play) -> None:
        """Nothing."""

    def check(self, play: Play, verdict: dict) -> Iterator[str]:
        yield from ()


class LinkLimited(HostFrozen):
    """F16: one host's cable lets little through."""

    id, ends = "F16", "slow"
    # What is usual must be known first (20 s and more of it), and a slow spell last a minute before nobody in particular is told.
    steps, step_s, first_step = 350, 0.2, 160

    def freeze(self, play: Play, host: str) -> None:
        play.machines.on_wire(host, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "8mbit", "burst", "16k", "latency", "400ms")

    def check(self, play: Play, verdict: dict) -> Iterator[str]:
        if verdict["verdict"] != "slow" or verdict["cause"] != "link_degraded":
            yield f"{verdict['verdict']} / {verdict['cause']}"
        if str(play.truth["host"]) not in verdict["sentence"]:
            yield "the sentence does not name the host"


SCENES = {each.id: each for each in (BadBlock, HostFrozen, CableCut, Elastic, LinkLimited)}


def _open_files(pid: int) -> set[str]:
    return {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def command_of(play: Play, elastic: bool) -> list[str]:
    hosts = len(play.machines.names)
    nodes = f"{hosts - 1}:{hosts}" if elastic else str(hosts)
    scene = play.scene
    return [
        *(sys.executable, "-m", "rankpatrol", "run", "--run-id", scene.folder.name, "--job-dir", str(scene.job), "--patience", "20s"),
        *("--checkpoints", str(scene.checkpoints), "--max-restarts", "4"),
        *("torchrun", "--nnodes", nodes, "--nproc-per-node", str(play.per_host), "--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29500"),
        *("--rdzv-id", scene.folder.name, "--rdzv-conf", "last_call_timeout=5"),
        *(str(scene.script), "--data", str(scene.data), "--checkpoints", str(scene.checkpoints), "--resume", "{checkpoint}"),
        *("--steps", str(scene.steps), "--save-every", "10", "--step-seconds", f"{scene.step_s:g}", "--workers", "1"),
    ]


def play_once(fault, hosts: int, per_host: int, seed: str, folder: Path) -> dict:
    dice = random.Random(seed)
    ranks = hosts * per_host
    first = getattr(fault, "first_step", 12)
    length = {"steps": getattr(fault, "steps", 60), "step_s": getattr(fault, "step_s", 0.2)}
    scene = Scene(folder=folder, ranks=ranks, rank=dice.randrange(ranks), step=dice.randint(first, first + 16), **length)
    build(scene)
    with Machines(hosts, str(os.getpid())) as machines:
        play = Play(scene, machines, per_host)
        fault.prepare(play)
        env = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RANKPATROL_LEMONS": "",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": "/tmp",
        }
        parents = {name: machines.start(name, command_of(play, fault.elastic), env, folder / f"{name}.txt") for name in machines.names}
        until = time.monotonic() + ALL_S
        try:
            _follow(fault, play, parents, until)
        finally:
            for parent in parents.values():
                if parent.poll() is None:
                    os.killpg(parent.pid, signal.SIGKILL)
                parent.wait()
            if play.fifo is not None:
                os.close(play.fifo)
        play.read()
        return score(fault, play, {name: parent.returncode for name, parent in parents.items()})


def _follow(fault, play: Play, parents: dict, until: float) -> None:
    while time.monotonic() < until and any(parent.poll() is None for parent in parents.values()):
        play.read()
        fault.strike(play)
        if any(event["kind"] in {"action", "attempt_ended"} for event in play.events):
            fault.heal(play)
        # Nobody can end what is frozen or cut off: once it is judged, sealed and told, the scene has shown what it can.
        closed = [event for event in play.of("action") if event.get("done") is not None]
        if fault.ends == "named" and play.of("bundle_sealed") and (closed or play.of("incident_closed")):
            return
        if fault.ends == "slow" and play.of("bundle_sealed"):
            return
        time.sleep(0.2)


def score(fault, play: Play, codes: dict[str, int]) -> dict:
    problems: list[str] = []
    onset = fault.onset(play)
    verdicts, alerts = play.of("verdict"), play.of("alert")
    # Of a slow link its node is named, and no rank.
    named = [event for event in (*alerts, *verdicts) if fault.ends == "slow" or event.get("suspect_ranks") or event.get("culprit_ranks")]
    times = {}
    if fault.ends == "silent":
        problems += [f"{event['kind']}: {event['sentence']}" for event in verdicts if event["verdict"] == "hang"]
        problems += [f"an action: {event['what']}" for event in play.of("action")]
    elif not verdicts:
        problems.append("no verdict")
    else:
        problems += list(fault.check(play, verdicts[0]))
    if onset is not None:
        for what, events in (
            ("named", named),
            ("verdict", verdicts),
            ("sealed", play.of("bundle_sealed")),
            ("ended", play.of("attempt_ended")),
        ):
            if events:
                times[what] = round(min(event["at_unix_s"] for event in events) - onset, 1)
        if fault.id in BARS_S and times.get("named", 1e9) > BARS_S[fault.id]:
            problems.append(f"named after {times.get('named')} s, bar {BARS_S[fault.id]} s")
        going_on = [e["at_unix_s"] for e in play.of("progress") if e["attempt"] > 0 and e["step"] >= play.scene.step]
        if going_on:
            times["beyond the old step"] = round(going_on[0] - onset, 1)
    problems += list(_bundles(play))
    if fault.ends in {"recovers", "silent"}:
        left = {
            name: code for name, code in codes.items() if code != 0 and name != (play.truth.get("host") if fault.ends == "silent" else None)
        }
        problems += [f"{name} ended with {code}" for name, code in left.items()]
        if not play.scene.last_checkpoint.exists():
            problems.append("the training did not come to its end")
    return {
        "scene": fault.id,
        "truth": play.truth,
        "times_s": times,
        "problems": problems,
        "sentence": verdicts[0]["sentence"] if verdicts else None,
    }


def _bundles(play: Play) -> Iterator[str]:
    """Every bundle stands, and holds every rank and every other host's facts, or why not."""
    for event in play.of("bundle_sealed"):
        path = play.scene.job / event["path"]
        done = subprocess.run([sys.executable, "-m", "rankpatrol", "bundle", "verify", str(path)], capture_output=True, check=False)
        if done.returncode != 0:
            yield f"{path.name} does not stand: {done.stdout.decode()[-300:]}"
            continue
        manifest = json.loads((path / "manifest.json").read_text())
        if len(manifest["ranks"]) != play.scene.ranks and not play.truth.get("at"):
            yield f"{path.name} holds {len(manifest['ranks'])} ranks"


def main(words: list[str], show: Callable[[str], object] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", default=["F6b"], choices=[*SCENES, []])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    if os.geteuid() != 0:
        show("skipped: hosts are made of namespaces, which needs root")
        return 0
    out = given.out or Path(mkdtemp(prefix="rankpatrol-cluster-"))
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in given.scenes:
        for number in range(given.runs):
            seed = f"{random.SystemRandom().randrange(1 << 32):08x}"
            result = play_once(SCENES[name](), given.hosts, given.per_host, seed, out / f"{name}-{number}-{seed}")
            results.append({**result, "seed": seed})
            show(f"{name} {number}: {'ok' if not result['problems'] else 'FAILED ' + '; '.join(result['problems'])}  {result['times_s']}")
            show(f"    {result['sentence']}")
            (out / "results.json").write_text(json.dumps(results, indent=2))
    return 1 if any(result["problems"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
