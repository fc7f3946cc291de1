"""A real API server of Kubernetes on this machine: etcd, kube-apiserver and the controllers, on loopback; no kubelet, no scheduler.

RANKPATROL_KUBERNETES_BIN names a folder with the binaries `etcd`, `kube-apiserver` and `kube-controller-manager`.
"""

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from kubelet import Wire

BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager")
TOKENS = {"admin": "system:masters", "patrol": "", "looker": ""}
JOBSETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobsets.jobset.x-k8s.io"},
    "spec": {
        "group": "jobset.x-k8s.io",
        "names": {"kind": "JobSet", "listKind": "JobSetList", "plural": "jobsets", "singular": "jobset"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def why_not() -> str | None:
    """Why no real server can run here, or None."""
    folder = os.environ.get("RANKPATROL_KUBERNETES_BIN", "")
    if not folder:
        return "RANKPATROL_KUBERNETES_BIN names no folder with etcd, kube-apiserver and kube-controller-manager"
    absent = [name for name in BINARIES if not os.access(Path(folder) / name, os.X_OK)]
    return f"{folder} has no {', '.join(absent)}" if absent else None


class RealApi:
    """Up when entered; nothing of it is left after."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._bin, self._started = folder, Path(os.environ["RANKPATROL_KUBERNETES_BIN"]), []
        self._etcd, self._peer, port = free_ports(3)
        self.url = f"https://127.0.0.1:{port}"
        self._port = port
        self.wire = Wire(self.url, "admin", None)

    def __enter__(self) -> Self:
        try:
            self._up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kubeconfig(self, token: str = "admin") -> Path:
        path = self.folder / f"kubeconfig-{token}"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [
                        {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.folder / "apiserver.crt")}}
                    ],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        return path

    def _up(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._start(
            "etcd",
            *(
                "--data-dir",
                str(self.folder / "etcd"),
                "--unsafe-no-fsync",
                "--listen-client-urls",
                client,
                "--advertise-client-urls",
                client,
            ),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
        )
        key, public = self.folder / "sa.key", self.folder / "sa.pub"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
        rows = [f"{token},{token},{number},{group}\n" for number, (token, group) in enumerate(TOKENS.items())]
        (self.folder / "tokens.csv").write_text("".join(rows))
        self._start(
            "kube-apiserver",
            *(f"--etcd-servers={client}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self._port}"),
            *("--insecure-port=0", f"--cert-dir={self.folder}", f"--service-account-key-file={public}"),
            *(f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.default.svc"),
            *(
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.96.0.0/24",
            ),
        )
        self._wait(lambda: self.wire("GET", "/api/v1/namespaces/default")[0] == 200)
        self._start(
            "kube-controller-manager",
            *(f"--kubeconfig={self.kubeconfig()}", f"--service-account-private-key-file={key}", "--bind-address=127.0.0.1", "--port=0"),
            *("--secure-port=0", f"--cert-dir={self.folder}", "--leader-elect=false"),
        )
        assert self.wire("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})[0] == 201
        assert self.wire("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}})[0] == 201
        assert self.wire("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", JOBSETS)[0] == 201
        # A pod is refused until the controllers have made its service account.
        self._wait(lambda: self.wire("GET", "/api/v1/namespaces/team/serviceaccounts/default")[1].get("secrets"))

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._started.append(subprocess.Popen([self._bin / name, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _wait(self, come_true) -> None:
        until = time.monotonic() + 90
        while True:
            try:
                if come_true():
                    return
            except (ValueError, OSError):
                pass
            dead = [process.args[0] for process in self._started if process.poll() is not None]
            assert not dead, f"{dead}: look into {self.folder}"
            assert time.monotonic() < until, f"it did not come up: look into {self.folder}"
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with_sockets = [socket.socket() for _ in range(count)]
    for each in with_sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in with_sockets]
    for each in with_sockets:
        each.close()
    return ports
