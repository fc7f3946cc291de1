"""What a hub costs and how soon it names a hang: simulated nodes tell it of their ranks, and now and then one rank of one job stops.

usage: python benchmarks/hub.py [--nodes 1000] [--job-nodes 64] [--hangs 12] [--every 5] [--profile FILE]

The hub is `rankpatrol hub` in a process of its own, the broker a real nats-server; each node has a connection of its own, tells the very
records that `rankpatrol agent` tells, and answers looks with stacks of 8 ranks with two loaders each. Hub, broker and all nodes share this
machine: CPU is in percent of one core, and the seconds run from the moment a rank stops to the alert in the job's events.jsonl.
`--job-nodes 0` makes one job of all nodes.
"""

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from exchange import cpu_s, end_in_order, rss_mb
from rankpatrol import __version__
from rankpatrol.agent.nodes.wire import VERSION, Light, Look, NodeState, Part, Seen, pack, unpack
from rankpatrol.agent.resident.envelope import Envelope, ToJob
from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import Frame, IoCounters, LogSample, ProcessSample, RankSample, Stack, SystemCall, ThreadStack
from rankpatrol.exchange.open import connected_within, open_exchange, parse_address
from rankpatrol.exchange.port import Role
from rankpatrol.exchange.server import start_server
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.rundir import RankPlace

RANKS, LOADERS = 8, 2
PROCESSES = 4
# A rank that trains: 60 % of a core, 40 waits and 4 steps a second.
TICKS_A_SECOND, WAITS_A_SECOND, STEPS_A_SECOND = 60, 40, 4
# A look takes a node so long: py-spy at 8 ranks and their loaders.
LOOK_S = 0.6
_WITHIN_S = 60.0
_FAMILY = 100

_TORCH = "torch/nn/modules/module.py"
_ABOVE = (("train_epoch", "/home/user/train.py", 88), ("main", "/home/user/train.py", 140), ("<module>", "/home/user/train.py", 155))
WAITS = (
    ("_engine_run_backward", "torch/autograd/graph.py", 824),
    ("backward", "torch/autograd/__init__.py", 347),
    ("backward", "torch/_tensor.py", 581),
    *_ABOVE,
)
TRAINS = (
    ("forward", "torch/nn/modules/linear.py", 125),
    ("_call_impl", _TORCH, 1750),
    ("_wrapped_call_impl", _TORCH, 1739),
    ("forward", "/home/user/model.py", 61),
    ("_call_impl", _TORCH, 1750),
    ("_wrapped_call_impl", _TORCH, 1739),
    *_ABOVE,
)
SLEEPS = (("ask_registry", "/home/user/metrics.py", 31), ("log_metrics", "/home/user/metrics.py", 52), *_ABOVE)
IDLES = (
    ("wait", "threading.py", 331),
    ("wait", "threading.py", 629),
    ("run", "tqdm/_monitor.py", 60),
    ("_bootstrap", "threading.py", 1002),
)
LOADS = (
    ("select", "selectors.py", 415),
    ("wait", "multiprocessing/connection.py", 947),
    ("poll", "multiprocessing/connection.py", 257),
    ("get", "multiprocessing/queues.py", 113),
    ("_worker_loop", "torch/utils/data/_utils/worker.py", 320),
    ("run", "multiprocessing/process.py", 108),
    ("_bootstrap", "multiprocessing/process.py", 314),
    ("<module>", "/home/user/train.py", 155),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--job-nodes", type=int, default=64)
    arguments.add_argument("--hangs", type=int, default=12)
    arguments.add_argument("--every", type=float, default=5.0)
    arguments.add_argument("--quiet", type=float, default=30.0, help="Seconds of a healthy cluster in which CPU is measured.")
    arguments.add_argument("--profile", type=Path, help="Have py-spy write where the hub spends its time into this file.")
    arguments.add_argument("--simulate", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.simulate is not None:
        Simulated(int(given.simulate), given).run()
        return
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="rankpatrol-hub-") as folder:
        Bench(Path(folder), given).run()


class Bench:
    """One measurement."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self._folder, self._given = folder, given
        self._jobs = max(1, given.nodes // given.job_nodes) if given.job_nodes else 1
        self._generations = [0] * self._jobs
        self._dice = random.Random(7)

    def run(self) -> None:
        self._server, address = start_server(self._folder / "broker")
        url = address.url(secret=True)
        self._said = (self._folder / "hub.txt").open("wb")
        env = {**os.environ, "TMPDIR": str(self._folder), "RANKPATROL_LEMONS": "", "RANKPATROL_EXCHANGE": url}
        command = [sys.executable, "-m", "rankpatrol", "hub", "--jobs-dir", str(self._folder / "jobs")]
        self._hub = subprocess.Popen(command, env=env, stdout=self._said, stderr=self._said)
        children = [self._simulated(number, url) for number in range(PROCESSES)]
        self._children = children
        try:
            self._measure()
        finally:
            self._hub.send_signal(signal.SIGTERM)
            for child in children:
                child.kill()
                child.wait()
            try:
                self._hub.wait(30)
            except subprocess.TimeoutExpired:
                self._hub.kill()
                self._hub.wait()
            self._server.stop()

    def _simulated(self, number: int, url: str) -> "subprocess.Popen[bytes]":
        """The address goes by standard input: it holds the secret."""
        options = ("nodes", "job-nodes", "every")
        words = [word for name in options for word in (f"--{name}", str(getattr(self._given, name.replace("-", "_"))))]
        child = subprocess.Popen([sys.executable, __file__, "--simulate", str(number), *words], stdin=subprocess.PIPE)
        _tell(child, {"url": url})
        return child

    def _measure(self) -> None:
        began_s = time.monotonic()
        while not self._all_begun():
            assert self._hub.poll() is None, (self._folder / "hub.txt").read_text()[-2000:]
            assert time.monotonic() - began_s < 240, f"not all of {self._jobs} jobs began: {(self._folder / 'hub.txt').read_text()[-2000:]}"
            time.sleep(0.5)
        print(
            f"{self._given.nodes} nodes x {RANKS} ranks, {self._jobs} jobs: all known after {time.monotonic() - began_s:.0f} s", flush=True
        )
        time.sleep(3 * self._given.every)  # a cluster that has only just come is busier
        profiler = self._profiler()
        self._tell_costs("nothing is wrong", lambda: time.sleep(self._given.quiet))
        assert not self._alerts(), f"healthy jobs were accused: {self._alerts()}"
        named_s: list[float | None] = []
        self._tell_costs("now and then one job hangs", lambda: named_s.extend(self._one_hang() for _ in range(self._given.hangs)))
        if profiler is not None:
            profiler.send_signal(signal.SIGINT)
            profiler.wait()
        known = sorted(each for each in named_s if each is not None)
        if known:
            p95 = known[min(len(known) - 1, round(0.95 * len(known) + 0.5) - 1)]
            print(
                f"{len(known)} of {len(named_s)} hangs named; p50 {statistics.median(known):.1f} s, p95 {p95:.1f} s, most {known[-1]:.1f} s"
            )
        else:
            print(f"none of {len(named_s)} hangs was named; the hub said last: {(self._folder / 'hub.txt').read_text()[-1500:]}")

    def _tell_costs(self, what: str, spell: Callable[[], object]) -> None:
        began_s, hub_s, server_s = time.monotonic(), cpu_s(self._hub.pid), cpu_s(self._server.pid or 0)
        spell()
        took_s = time.monotonic() - began_s
        hub, server = (100 * (cpu_s(pid) - before) / took_s for pid, before in ((self._hub.pid, hub_s), (self._server.pid or 0, server_s)))
        rss = f"{rss_mb(self._hub.pid)} and {rss_mb(self._server.pid or 0)} MB"
        print(f"{what}, {took_s:.0f} s: hub {hub:.0f} %, broker {server:.0f} % of a core; {rss}; {self._ages()}", flush=True)

    def _ages(self) -> str:
        """Whether nodes, hub and broker keep up: how old the newest word of each node was in the last state.json of its job."""
        states = [json.loads(path.read_bytes()) for path in (self._folder / "jobs").glob("job*-*/state.json")]
        states = [state for state in states if not state["ended"]]
        ages_s = sorted(node["heard_ago_s"] for state in states for node in state["nodes"])
        oldest_s = max((time.time() - state["at_unix_s"] for state in states), default=0.0)
        if not ages_s:
            return "no state.json yet"
        return (
            f"words are {statistics.median(ages_s):.1f} s old, 99 % below {ages_s[int(0.99 * len(ages_s))]:.1f} s, states {oldest_s:.1f} s"
        )

    def _one_hang(self) -> float | None:
        """Seconds until the alert of a rank that stops at a random moment; None where it is not named."""
        time.sleep(self._dice.uniform(0.0, self._given.every))
        job = self._dice.randrange(self._jobs)
        rank = self._dice.randrange(len(nodes_of_job(job, self._given)) * RANKS)
        before = len(self._alerts_of(job))
        onset_s, onset_unix_s = time.monotonic(), time.time()
        for child in self._children:
            _tell(child, {"freeze": job, "rank": rank, "at_s": onset_s})
        named_s = None
        while named_s is None and time.monotonic() - onset_s < _WITHIN_S:
            time.sleep(0.2)
            assert self._hub.poll() is None, f"the hub has ended with {self._hub.returncode}"
            alerts = self._alerts_of(job)[before:]
            if alerts:
                assert alerts[0]["suspect_ranks"] == [rank], alerts[0]
                named_s = alerts[0]["at_unix_s"] - onset_unix_s
        print(f"  job {job}, rank {rank}: {named_s and round(named_s, 1)} s", flush=True)
        # A job that was once seen to stand and go on is given longer the next time: another takes its place.
        self._generations[job] += 1
        for child in self._children:
            _tell(child, {"anew": job, "at_s": time.monotonic()})
        time.sleep(3 * self._given.every)
        return named_s

    def _all_begun(self) -> bool:
        return sum(1 for job in range(self._jobs) for event in self._events_of(job) if event["kind"] == "attempt_started") >= self._jobs

    def _alerts(self) -> list[dict]:
        return [alert for job in range(self._jobs) for alert in self._alerts_of(job)]

    def _alerts_of(self, job: int) -> list[dict]:
        return [event for event in self._events_of(job) if event["kind"] in {"alert", "verdict"}]

    def _events_of(self, job: int) -> list[dict]:
        lines = (
            line
            for path in (self._folder / "jobs").glob(f"job{job}.{self._generations[job]}-*/events.jsonl")
            for line in path.read_bytes().splitlines()
        )
        return [json.loads(line) for line in lines if b'"progress"' not in line and line.endswith(b"}")]

    def _profiler(self) -> "subprocess.Popen[bytes] | None":
        if self._given.profile is None:
            return None
        command = ["py-spy", "record", "--nonblocking", "--format", "raw", "--rate", "50", "--output", str(self._given.profile)]
        return subprocess.Popen([*command, "--pid", str(self._hub.pid), "--duration", "3600"], stdout=subprocess.DEVNULL)


class Job:
    """How long a job has worked; it stands from the moment one of its ranks stops."""

    def __init__(self) -> None:
        self.frozen_at_s: float | None = None
        self.culprit: int | None = None
        self.lost_s = 0.0
        self.generation = 0

    def worked_s(self, now_s: float) -> float:
        return (now_s if self.frozen_at_s is None else self.frozen_at_s) - self.lost_s

    def stands(self) -> bool:
        return self.frozen_at_s is not None


class Node:
    """One simulated node."""

    def __init__(self, number: int, job: int, first_rank: int, world_size: int) -> None:
        self.name, self.job = f"node-{number}", job
        self.ranks = range(first_rank, first_rank + RANKS)
        self.places = tuple(_place(rank, rank - first_rank, world_size, self.name) for rank in self.ranks)
        stuck = Job()
        stuck.frozen_at_s = 0.0
        # Made before anything is measured: the work of a thousand nodes would be this one machine's.
        self._all_wait = pack(Seen(at_mono_s=0.0, ranks=tuple(self._sample(place, stuck, 1000.0) for place in self.places)))

    def state(self, job: Job, now_s: float, every_s: float) -> bytes:
        worked_s = job.worked_s(now_s)
        key = f"job{self.job}.{job.generation}"
        group = msgspec.json.encode({"rdzv": key}).decode()
        activities = tuple(_activity(rank, worked_s) for rank in self.ranks)
        light = Light(
            activities=activities,
            processes={rank: _process(rank, worked_s, call="futex") for rank in self.ranks},
            logs={rank: LogSample(size_bytes=int(100 * worked_s), tail=(), step=_step(rank, worked_s), losses=()) for rank in self.ranks},
        )
        part = Part(number=1, group=group, places=self.places, exits={}, gone=())
        told = NodeState(
            version=VERSION,
            release=__version__,
            node=self.name,
            at_mono_s=now_s,
            at_unix_s=time.time(),
            parts=(part,),
            light=light,
            every_s=every_s,
        )
        return pack(Envelope(jobs={key: pack(told)}))

    def answer(self, job: Job, command: str, body: bytes) -> bytes:
        order = unpack(body, ToJob)
        if order.job != f"job{self.job}.{job.generation}":
            raise BadInput("this node holds no part of that job")
        if command != "look":
            return pack({} if command in {"recordings", "lines", "host"} else Missing("not simulated") if command == "native" else "")
        unpack(order.body, Look)
        time.sleep(LOOK_S)
        if job.stands() and job.culprit not in self.ranks:
            return self._all_wait
        worked_s = job.worked_s(time.monotonic())
        samples = tuple(self._sample(place, job, 1000.0 if job.stands() else worked_s) for place in self.places)
        return pack(Seen(at_mono_s=time.monotonic(), ranks=samples))

    def _sample(self, place: RankPlace, job: Job, worked_s: float) -> RankSample:
        frames = (SLEEPS if place.rank == job.culprit else WAITS) if job.stands() else random.choice((TRAINS, WAITS))
        call = "clock_nanosleep" if frames is SLEEPS else "futex"
        children = [_pid(place.rank) + 1 + each for each in range(LOADERS)]
        return RankSample(
            rank=place.rank,
            local_rank=place.local_rank,
            node=place.node,
            shim_pid=place.shim_pid,
            pid=place.pid,
            process=_process(place.rank, worked_s, call=call),
            descendants=tuple(
                msgspec.structs.replace(_process(place.rank, worked_s, call="poll"), id=ProcessId("boot", pid, pid)) for pid in children
            ),
            stack=_stack(place.pid, frames, 5),
            child_stacks={pid: _stack(pid, LOADS, 2) for pid in children},
            log=LogSample(size_bytes=int(100 * worked_s), tail=("step 1 loss 2.1",) * 20, step=_step(place.rank, worked_s)),
        )


class Simulated:
    """A part of all nodes, in one process."""

    def __init__(self, number: int, given: argparse.Namespace) -> None:
        self._number, self._given = number, given
        self._jobs: dict[int, Job] = {}
        self._nodes: list[Node] = []

    def run(self) -> None:
        address = parse_address(json.loads(sys.stdin.readline())["url"])
        self._nodes = [self._node(number) for number in range(self._number, self._given.nodes, PROCESSES)]
        threading.Thread(target=self._obey, daemon=True).start()
        places = []
        for each, node in enumerate(self._nodes):
            place = open_exchange(address, node.name, role=Role.NODE)
            place.serve(lambda command, body, node=node: node.answer(self._jobs[node.job], command, body))
            places.append(place)
            if each % 50 == 0:
                assert connected_within(place, 60), place.trouble()
        dice = random.Random(self._number)
        due_s = [time.monotonic() + dice.uniform(0, self._given.every) for _ in self._nodes]
        while True:
            each = min(range(len(due_s)), key=due_s.__getitem__)
            time.sleep(max(0.0, due_s[each] - time.monotonic()))
            node, now_s = self._nodes[each], time.monotonic()
            places[each].tell(node.state(self._jobs[node.job], now_s, self._given.every))
            # An agent's rounds are a second long: it tells at the first one in which it is due.
            due_s[each] = now_s + self._given.every + dice.uniform(0.0, 0.5)

    def _node(self, number: int) -> Node:
        job = min(number // self._given.job_nodes, self._given.nodes // self._given.job_nodes - 1) if self._given.job_nodes else 0
        members = nodes_of_job(job, self._given)
        self._jobs.setdefault(job, Job())
        return Node(number, job, (number - members.start) * RANKS, len(members) * RANKS)

    def _obey(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            job = self._jobs.get(order.get("freeze", order.get("anew")))
            if job is not None and "freeze" in order:
                job.culprit, job.frozen_at_s = order["rank"], order["at_s"]
            elif job is not None and job.frozen_at_s is not None:
                job.lost_s += order["at_s"] - job.frozen_at_s
                job.culprit = job.frozen_at_s = None
                job.generation += 1
        os._exit(0)  # the measurement is over, or was ended


def nodes_of_job(job: int, given: argparse.Namespace) -> range:
    """The last job takes what is left over."""
    if not given.job_nodes:
        return range(given.nodes)
    last = given.nodes // given.job_nodes - 1
    return range(job * given.job_nodes, given.nodes if job == last else (job + 1) * given.job_nodes)


def _pid(rank: int) -> int:
    return 10_000 + rank * _FAMILY


def _step(rank: int, worked_s: float) -> int | None:
    return int(STEPS_A_SECOND * worked_s) if rank == 0 else None


def _place(rank: int, local_rank: int, world_size: int, node: str) -> RankPlace:
    return RankPlace(
        attempt=1,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        node=node,
        shim_pid=_pid(rank),
        shim_start_ticks=1,
        pid=_pid(rank),
        start_ticks=1,
        torchrun_restarts=0,
        scheduler_restarts=0,
        started_unix_s=1.8e9,
    )


def _activity(rank: int, worked_s: float) -> RankActivity:
    return RankActivity(
        rank=rank,
        ended=False,
        joined=True,
        traced=False,
        stopped=False,
        main_thread_ticks=int(TICKS_A_SECOND * worked_s),
        switches=int(WAITS_A_SECOND * worked_s),
        step=_step(rank, worked_s),
    )


def _process(rank: int, worked_s: float, *, call: str) -> ProcessSample:
    return ProcessSample(
        id=ProcessId("boot", _pid(rank), 1),
        parent_pid=1,
        name="python3",
        command=Missing("not told in light rounds"),
        state="S",
        tracer_pid=0,
        wait_channel="futex_do_wait" if call == "futex" else "hrtimer_nanosleep",
        system_call=SystemCall(call, (140_000_000_000, 128, 0, 0, 0, 0)),
        cpu_ticks=int(1.2 * TICKS_A_SECOND * worked_s),
        main_thread_ticks=int(TICKS_A_SECOND * worked_s),
        voluntary_switches=int(WAITS_A_SECOND * worked_s),
        involuntary_switches=0,
        minor_faults=int(10 * worked_s),
        major_faults=0,
        resident_bytes=4 << 30,
        io=IoCounters(int(1e6 * worked_s), int(1e3 * worked_s), 0, 0),
        open_files=Missing("files were not listed in this round"),
        thread_names=("python3", "pt_autograd_0", "pt_gloo_0", "pt_gloo_1", "pt_nccl_watchdg", "pt_nccl_heartbt", "cuda-EvtHandlr", "tqdm"),
    )


def _stack(pid: int, frames: tuple[tuple[str, str, int], ...], threads: int) -> Stack:
    first = ThreadStack(thread_id=pid, name="MainThread", active=False, owns_gil=False, frames=tuple(Frame(*frame) for frame in frames))
    idle = tuple(Frame(*frame) for frame in IDLES)
    others = (
        ThreadStack(thread_id=pid + each, name=f"Thread-{each}", active=False, owns_gil=False, frames=idle) for each in range(1, threads)
    )
    return Stack(pid, (first, *others))


def _tell(child: "subprocess.Popen[bytes]", order: dict) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(order).encode() + b"\n")
    child.stdin.flush()


if __name__ == "__main__":
    main()
