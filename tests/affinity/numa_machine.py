"""A machine with three NUMA nodes under emulation: ranks are really bound there. `make drill-numa`, about two minutes on one core.

Node 0 and 1 have CPUs and memory, node 2 memory only. PCI devices of nodes 0, 1, 2 and of none stand for GPUs; NVIDIA's own list of them
is laid over /proc/driver. Needs qemu-system-x86, busybox-static, cpio and a kernel image (Debian's linux-image-cloud-amd64).
"""

import gzip
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
BUSYBOX = ("/bin/busybox", "/usr/bin/busybox")
LIMIT_S = 900  # two minutes of one core, on a machine that may be busy
NEEDED = "apt install qemu-system-x86 busybox-static cpio linux-image-cloud-amd64   (or KERNEL=/path/to/vmlinuz make drill-numa)"
# Of Python's library nothing here needs these, and they are most of it.
LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "config-*", "__pycache__", "pydoc_data"
)
ADDRESSES = re.compile(r"^(?P<address>\S+) (?P<node>-?\d+)$", re.MULTILINE)


def main() -> int:
    kernel, busybox = _kernel(), next((path for path in BUSYBOX if Path(path).exists()), None)
    if not (kernel and busybox and shutil.which("qemu-system-x86_64") and shutil.which("cpio")):
        print(f"drill-numa needs an emulator, a kernel and busybox:\n  {NEEDED}")
        return 3
    with tempfile.TemporaryDirectory(prefix="rankpatrol-numa-") as folder:
        image = _image(Path(folder), busybox)
        print(f"numa | {kernel} with {image.stat().st_size >> 20} MiB of files; the machine boots …", flush=True)
        text = _boot(kernel, image)
    results = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]
    for result in results:
        print(f"numa | {'ok  ' if result['ok'] else 'FAIL'} {result['what']}\n         {result['saw']}")
    done = any(result["what"] == "end" for result in results)
    if not done:
        print(text[-6000:])
    return 0 if done and all(result["ok"] for result in results) else 1


def _kernel() -> str | None:
    named = os.environ.get("KERNEL")
    found = sorted(Path("/boot").glob("vmlinuz-*"))
    return named or (str(found[-1]) if found else None)


def _image(folder: Path, busybox: str) -> Path:
    """An initramfs with busybox, this very Python and rankpatrol."""
    root = folder / "root"
    for name in ("bin", "proc", "sys", "dev", "tmp", "cg", "fake/nvidia/gpus"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    python = Path(os.path.realpath(sys.executable))
    _copy(python, root)
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, root / library.relative_to("/"), ignore=LEFT_OUT)
    for package in ("click", "msgspec"):
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, root / "opt" / package, ignore=LEFT_OUT)
    shutil.copytree(SRC / "rankpatrol", root / "opt/rankpatrol", ignore=LEFT_OUT)
    for native in [python, *root.rglob("*.so")]:
        for needed in _libraries(native):
            _copy(needed, root)
    shutil.copy(HERE / "numa_guest.py", root / "guest.py")
    init = root / "init"
    init.write_text(
        "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PYTHONPATH=/opt PYTHONDONTWRITEBYTECODE=1 PATH=/bin\n"
        f"{python} -S /guest.py\npoweroff -f\n"
    )
    init.chmod(init.stat().st_mode | stat.S_IXUSR)
    image = folder / "image.gz"
    archive = subprocess.run("find . | cpio -o -H newc --quiet", shell=True, cwd=root, check=True, capture_output=True).stdout
    image.write_bytes(gzip.compress(archive, 1))
    return image


def _copy(path: Path, root: Path) -> None:
    there = root / path.relative_to("/")
    if not there.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, there)


def _libraries(path: Path) -> Iterator[Path]:
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    yield from (Path(word) for word in re.findall(r"(/\S+)", told) if Path(word).exists())


def _boot(kernel: str, image: Path) -> str:
    """What the machine said on its console. It is emulated: nothing of it is quick."""
    nodes = [("node,nodeid=0,cpus=0-1,memdev=m0"), ("node,nodeid=1,cpus=2-3,memdev=m1"), ("node,nodeid=2,memdev=m2")]
    distances = ["dist,src=0,dst=1,val=21", "dist,src=0,dst=2,val=40", "dist,src=1,dst=2,val=40"]
    words = ["nice", "-n", "15", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-machine", "q35", "-m", "1536"]
    words += ["-smp", "4,sockets=2,cores=2,threads=1"]
    for number in range(3):
        words += ["-object", f"memory-backend-ram,id=m{number},size=512M"]
    for numa in nodes + distances:
        words += ["-numa", numa]
    for node, bus in ((0, 24), (1, 157), (2, 90)):
        words += ["-device", f"pxb-pcie,id=px{node},bus_nr={bus},bus=pcie.0,numa_node={node}"]
        words += ["-device", f"pcie-root-port,id=rp{node},bus=px{node},chassis={node + 1},slot={node + 1}"]
        words += ["-device", f"virtio-rng-pci,bus=rp{node}"]
    words += ["-device", "virtio-rng-pci,bus=pcie.0"]
    words += ["-kernel", kernel, "-initrd", str(image), "-append", "console=ttyS0 quiet panic=-1"]
    words += ["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as problem:
        return (problem.stdout or b"").decode(errors="replace") + f"\nnot done within {LIMIT_S} s"
    return (done.stdout + done.stderr).decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
