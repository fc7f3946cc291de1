"""What a kubelet does with pods, without containers: their commands run here, in cgroups that are named like a pod's.

It speaks to any API server, the small one of these tests or a real one, as a client that may do everything.
"""

import contextlib
import http.client
import json
import os
import secrets
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cgroups import remove_cgroup

GRACE_S = 5.0


class Wire:
    """One API server, by its URL, its certificate's authority (None: not checked) and a token."""

    def __init__(self, url: str, token: str, authority: Path | None) -> None:
        self.url, self._token = url, token
        self._context = ssl.create_default_context(cafile=authority)
        if authority is None:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    def __call__(self, method: str, path: str, body: object = None, content: str = "application/json") -> tuple[int, dict]:
        try:
            with self.open(method, path, body, content) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                told = refused.read()
            return refused.code, json.loads(told) if told.startswith(b"{") else {"message": told.decode()}

    def open(self, method: str, path: str, body: object = None, content: str = "application/json", timeout_s: float = 30.0):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        return urllib.request.urlopen(request, timeout=timeout_s, context=self._context)


def cgroup_root() -> Path | None:
    """A folder of a cgroup hierarchy where we may make groups; None where there is none."""
    for place in ("/sys/fs/cgroup/freezer", "/sys/fs/cgroup"):
        trial = Path(place) / f"rankpatrol-{secrets.token_hex(4)}"
        try:
            trial.mkdir()
        except OSError:
            continue
        if (trial / "cgroup.procs").exists():
            trial.rmdir()
            return Path(place)
        trial.rmdir()
    return None


class Kubelet:
    """Runs the pods of one namespace, on a pretended node."""

    def __init__(self, wire: Wire, namespace: str, node: str, folder: Path) -> None:
        self._wire, self._path, self._node, self._folder = wire, f"/api/v1/namespaces/{namespace}/pods", node, folder
        place = cgroup_root()
        self._cgroups = None if place is None else place / f"rankpatrol-{secrets.token_hex(4)}" / "kubepods"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[tuple[str, str]] = set()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._stop = threading.Event()
        self._watching = threading.Event()
        self.frozen = False

    def __enter__(self) -> Self:
        """Not before it watches: a connection that is being made while its server goes is a socket that nobody closes."""
        self._start(self._watch)
        if not self._watching.wait(20):
            self.__exit__()
            raise AssertionError("the API server lets nobody watch pods")
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._stop.set()
        until = time.monotonic() + 10
        self._kill_all()
        while any(thread.is_alive() for thread in self._threads[1:]) and time.monotonic() < until:
            for thread in self._threads[1:]:
                thread.join(0.05)
            self._kill_all()  # again: one of them may have been about to start a process
        if self._cgroups is not None:
            remove_cgroup(self._cgroups.parent)

    def _kill_all(self) -> None:
        for process in list(self._running.values()):
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            self._sweep(process)

    def _watch(self) -> None:
        """Each line of the watch is a pod that changed; the first lines are all that there are."""
        while not self._stop.is_set():
            try:
                _, listed = self._wire("GET", self._path)
                for pod in listed.get("items", []):
                    self._see(pod)
                version = listed.get("metadata", {}).get("resourceVersion", "0")
                with self._wire.open("GET", f"{self._path}?watch=1&resourceVersion={version}") as lines:
                    self._watching.set()
                    for line in lines:
                        if self._stop.is_set():
                            return
                        self._see(json.loads(line)["object"])
            except urllib.error.HTTPError as refused:
                refused.close()
            except (OSError, ValueError, http.client.HTTPException):
                pass  # the server is down, or was shut down meanwhile
            self._stop.wait(0.05)

    def _see(self, pod: dict) -> None:
        meta = pod["metadata"]
        if "uid" not in meta or self.frozen:
            return
        if "deletionTimestamp" in meta:
            self._once("end", pod, self._end)
        elif not pod["spec"].get("nodeName"):
            self._once("bind", pod, self._bind)
        elif pod["status"].get("phase") == "Pending":
            self._once("run", pod, self._run)

    def _once(self, what: str, pod: dict, deed) -> None:
        if (what, pod["metadata"]["uid"]) not in self._told:
            self._told.add((what, pod["metadata"]["uid"]))
            self._start(deed, pod)

    def _start(self, deed, *arguments: object) -> None:
        def work() -> None:
            try:
                deed(*arguments)
            except (OSError, ValueError, http.client.HTTPException):
                if not self._stop.is_set():  # the server may go before we do
                    raise

        with self._starting:
            if not self._stop.is_set():
                self._threads.append(threading.Thread(target=work, daemon=True))
                self._threads[-1].start()

    def _bind(self, pod: dict) -> None:
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
        self._wire("POST", f"{self._path}/{pod['metadata']['name']}/binding", {**body, "target": {"kind": "Node", "name": self._node}})

    def _run(self, pod: dict) -> None:
        meta, container = pod["metadata"], pod["spec"]["containers"][0]
        number = secrets.token_hex(32)
        environment = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
        group = None
        if self._cgroups is not None:
            group = self._cgroups / "besteffort" / f"pod{meta['uid']}" / number
            group.mkdir(parents=True)
        with (self._folder / f"{meta['name']}.log").open("wb") as log:
            words = [
                "sh",
                "-c",
                'test -z "$1" || echo $$ > "$1/cgroup.procs"; shift; exec "$@"',
                "sh",
                str(group or ""),
                *container["command"],
            ]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
            )
        process.group = group
        self._running[meta["uid"]] = process
        status = {
            "name": container["name"],
            "ready": True,
            "restartCount": 0,
            "containerID": f"containerd://{number}",
            "image": "",
            "imageID": "",
        }
        self._say(pod, {"phase": "Running", "startTime": _now(), "containerStatuses": [status]})
        code = process.wait()
        if not self._stop.is_set():
            self._say(pod, {"phase": "Failed" if code else "Succeeded"})

    def _end(self, pod: dict) -> None:
        process = self._running.get(pod["metadata"]["uid"])
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._sweep(process)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._wire("DELETE", f"{self._path}/{pod['metadata']['name']}", options)

    def _sweep(self, process: "subprocess.Popen[bytes]") -> None:
        """What is left in its cgroup goes too, as with a real one: ranks have sessions of their own."""
        group = getattr(process, "group", None)
        if group is None or not group.exists():
            return
        for word in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)

    def _say(self, pod: dict, status: dict) -> None:
        self._wire("PATCH", f"{self._path}/{pod['metadata']['name']}/status", {"status": status}, "application/merge-patch+json")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
