"""The first process of the emulated machine: binds real ranks there and tells what the kernel says of them."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

PATROL = [sys.executable, "-S", "-m", "rankpatrol"]
SHIM = ["/opt/rankpatrol/launch/shim"]
# A rank: takes 64 MiB, tells where it may run and where they lie, and waits to be let go.
RANK = """
import os, re, sys
block = bytearray(64 << 20)
for at in range(0, len(block), 4096):
    block[at] = 1
status = open('/proc/self/status').read()
pages = {}
for line in open('/proc/self/numa_maps'):
    if 'file=' not in line:
        for node, count in re.findall(r' N(\\d+)=(\\d+)', line):
            pages[node] = pages.get(node, 0) + int(count)
most = max(pages, key=pages.get)
print(re.search(r'Cpus_allowed_list:\\s*(\\S+)', status)[1], most, round(100 * pages[most] / sum(pages.values())), flush=True)
if '--wait' in sys.argv:
    sys.stdin.readline()
"""
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, None) != 0:
        print("cannot mount", target, os.strerror(ctypes.get_errno()))


def tell(what: str, ok: bool, saw: object) -> None:
    print("RESULT " + json.dumps({"what": what, "ok": bool(ok), "saw": str(saw).strip()}), flush=True)


def text_of(path: str) -> str:
    with pathlib.Path(path).open() as text:
        return text.read().strip()


def run(words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True, check=False)


def rank_words() -> list[str]:
    return [sys.executable, "-S", "-c", RANK]


def devices() -> dict[int, str]:
    """The virtio device of each node."""
    found = {}
    for address in sorted(os.listdir("/sys/bus/pci/devices")):
        folder = f"/sys/bus/pci/devices/{address}"
        if text_of(f"{folder}/vendor") == "0x1af4":
            found[int(text_of(f"{folder}/numa_node"))] = address
    return found


def lay_driver(addresses: list[str]) -> None:
    """NVIDIA's list of GPUs, over /proc/driver."""
    for minor, address in enumerate(addresses):
        pathlib.Path(f"/fake/nvidia/gpus/{address}").mkdir(parents=True)
        with pathlib.Path(f"/fake/nvidia/gpus/{address}/information").open("w") as out:
            out.write(f"Model: \t\t Stand-in\nGPU UUID: \t GPU-{minor}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n")
        with pathlib.Path(f"/dev/nvidia{minor}").open("w") as out:
            out.write("")
    mount("/fake", "/proc/driver", "", 4096)  # MS_BIND


def by_name(there: dict[int, str]) -> None:
    done = run([*PATROL, "bind", "--gpu", there[1], "--", *rank_words()])
    tell("bind: CPUs and memory of node 1, by numa_maps", done.stdout.split()[:2] == ["2-3", "1"], done.stdout + done.stderr)
    done = run([*PATROL, "bind", "--memory", "strict", "--gpu", there[0], "--", *rank_words()])
    tell("bind --memory strict: node 0", done.stdout.split()[:2] == ["0-1", "0"], done.stdout + done.stderr)
    done = run([*PATROL, "bind", "--gpu", there[2], "--", *rank_words()])
    tell(
        "a GPU on the memory-only node, equally far from both: refused, and CMD runs",
        done.stdout.startswith("0-3 ") and "equally near" in done.stderr,
        done.stdout + done.stderr,
    )
    done = run([*PATROL, "bind", "--gpu", there[-1], "--", *rank_words()])
    tell("a GPU without a node (-1): refused", done.stdout.startswith("0-3 ") and "-1" in done.stderr, done.stdout + done.stderr)

    done = run([*PATROL, "bind", "--gpu", there[1], "--", *PATROL, "bind", "--gpu", there[1], "--", *rank_words()])
    tell(
        "a rank that is bound already is left alone",
        done.stdout.split()[:2] == ["2-3", "1"] and "left as it is" in done.stderr,
        done.stdout + done.stderr,
    )


def with_cores_of_its_own() -> None:
    words = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "16"}
    done = run([*PATROL, "bind", "--mode", "core", "--", *rank_words()], **words)
    warned = "OMP_NUM_THREADS=16, but the rank gets 2 CPUs" in done.stderr
    tell("bind --mode core, and a warning of too many threads", done.stdout.startswith("2-3 1 ") and warned, done.stdout + done.stderr)


def under_the_shim() -> None:
    """As torchrun would start two ranks, CUDA_VISIBLE_DEVICES shuffled."""
    pathlib.Path("/tmp/run/job").mkdir(exist_ok=True, parents=True)
    for room in ("openings", "claims", "ranks", "exits", "bindings", "shims", "probes", "resume"):
        pathlib.Path(f"/tmp/run/{room}").mkdir(exist_ok=True, parents=True)
    with pathlib.Path("/tmp/run/job.json").open("w") as out:
        json.dump({"job_dir": "/tmp/run/job", "probe": False, "bind": True, "checkpoints": None}, out)
    for rank, cpus in ((0, "2-3"), (1, "0-1")):
        words = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": 2,
            "WORLD_SIZE": 2,
            "MASTER_PORT": 1,
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
        done = run(
            [sys.executable, "-I", "-S", *SHIM, str(os.getpid()), *rank_words()],
            RANKPATROL_RUN_DIR="/tmp/run",
            CUDA_VISIBLE_DEVICES="GPU-1,GPU-0",
            **{name: str(value) for name, value in words.items()},
        )
        seen = done.stdout.split()
        tell(f"shim: rank {rank} of a shuffled CUDA_VISIBLE_DEVICES", seen[:1] == [cpus] and int(seen[2]) > 90, done.stdout + done.stderr)


def audit() -> None:
    """One rank bound to the wrong node on purpose, one to the right one; both have memory."""
    for cpus, verdict, code in (("0-1", "misbound", 1), ("2-3", "bound", 0)):
        first = int(cpus[0])
        rank = subprocess.Popen(
            [*rank_words(), "--wait"],
            env={**os.environ, "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda first=first: os.sched_setaffinity(0, {first, first + 1}),
        )
        rank.stdout.readline()
        done = run([*PATROL, "affinity", "check", "--json"])
        audits = json.loads(done.stdout)["ranks"]
        told = [finding for one in audits for finding in one["findings"]]
        verdicts = [one["verdict"] for one in audits]
        tell(f"check: a rank on CPUs {cpus} is {verdict}", (done.returncode, verdicts) == (code, [verdict]), told)
        rank.communicate(b"\n")


def in_a_cpuset(there: dict[int, str]) -> None:
    mount("c", "/cg", "cgroup2")
    for name, value in (("cgroup.subtree_control", "+cpuset"),):
        write(f"/cg/{name}", value)
    pathlib.Path("/cg/job").mkdir()
    for name, value in (("cpuset.cpus", "0"), ("cpuset.mems", "0"), ("cgroup.procs", str(os.getpid()))):
        write(f"/cg/job/{name}", value)
    done = run([*PATROL, "bind", "--gpu", there[1], "--", *rank_words()])
    tell(
        "in a cpuset of node 0, with the GPU on node 1: a finding, and CMD runs",
        done.stdout.startswith("0 0 ") and "the allocation is on the wrong socket" in done.stderr,
        done.stdout + done.stderr,
    )
    done = run([*PATROL, "bind", "--gpu", there[0], "--", *rank_words()])
    tell("in the same cpuset, with the GPU on node 0: bound within it", done.stdout.startswith("0 0 "), done.stdout + done.stderr)


def write(path: str, value: str) -> None:
    with pathlib.Path(path).open("w") as out:
        out.write(value)


def main() -> None:
    for source, target, kind in (("p", "/proc", "proc"), ("s", "/sys", "sysfs"), ("d", "/dev", "devtmpfs")):
        mount(source, target, kind)
    began = time.monotonic()
    there = devices()
    tell("three nodes, node 2 without CPUs, devices on each and on none", sorted(there) == [-1, 0, 1, 2], there)
    by_name(there)
    lay_driver([there[0], there[1]])
    print(run([*PATROL, "affinity", "show"]).stdout, flush=True)
    with_cores_of_its_own()
    under_the_shim()
    audit()
    in_a_cpuset(there)
    tell("end", True, f"{time.monotonic() - began:.0f} s inside the machine")


try:
    main()
except Exception as problem:
    tell(f"stopped: {type(problem).__name__}", False, problem)
    raise
