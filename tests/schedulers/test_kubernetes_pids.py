"""From a process to its pod, and back: every form of cgroup path that kubelets and runtimes write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kubelet import cgroup_root

from rankpatrol.core.records import Missing
from rankpatrol.schedulers import kubernetes_pids
from rankpatrol.schedulers.kubernetes_json import ContainerStatus, Meta, Pod, PodSpec, PodStatus
from rankpatrol.schedulers.kubernetes_pids import POD_UID, Place, containers_of, place_of, pod_around_us, processes_of

UID = "3f1c9b1e-52a6-4b7c-8d8f-6a1b2c3d4e5f"
DASHES_GONE = UID.replace("-", "_")
ONE, TWO = "a1" * 32, "b2" * 32


def pod(uid: str = UID, container: str = ONE, name: str = "train-x", hostname: str | None = None) -> Pod:
    status = ContainerStatus(name="train", container_id=f"containerd://{container}")
    spec = PodSpec(node_name="n1", hostname=hostname)
    return Pod(Meta(name=name, namespace="team", uid=uid), spec, PodStatus(phase="Running", container_statuses=(status,)))


@pytest.mark.parametrize(
    "cgroups",
    [
        # cgroupfs, v1, three classes of service; as read on a node of Kubernetes 1.20, with a cgroupRoot of its own.
        f"6:freezer:/n1/kubepods/besteffort/pod{UID}/{ONE}\n1:cpu:/n1/kubepods/besteffort/pod{UID}/{ONE}\n0::/",
        f"6:freezer:/kubepods/burstable/pod{UID}/{ONE}",
        f"6:freezer:/kubepods/pod{UID}/{ONE}",
        f"0::/kubepods/pod{UID}/crio-{ONE}",
        # systemd, v2, with containerd, CRI-O and cri-dockerd.
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{DASHES_GONE}.slice/cri-containerd-{ONE}.scope",
        f"0::/kubepods.slice/kubepods-pod{DASHES_GONE}.slice/crio-{ONE}.scope",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{DASHES_GONE}.slice/docker-{ONE}.scope",
        # kind: a node that is itself a container. A container that makes cgroups of its own below.
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{DASHES_GONE}.slice/cri-containerd-{ONE}.scope",
        f"0::/kubepods/pod{UID}/{ONE}/init",
        # Seen from another cgroup namespace of the same host (hostPID).
        f"0::/../../../besteffort/pod{UID}/{ONE}",
    ],
)
def test_every_form_of_path_names_pod_and_container(cgroups):
    assert place_of(cgroups) == Place(UID, ONE)


def test_a_static_pods_uid_has_no_dashes():
    assert place_of(f"0::/kubepods/burstable/pod{'c' * 32}/{ONE}") == Place("c" * 32, ONE)


@pytest.mark.parametrize(
    "cgroups",
    [
        "",
        "0::/",
        "0::/user.slice/user-1000.slice/session-2.scope",
        # Anybody may name a folder so in what systemd delegates to them.
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ONE}",
        f"0::/kubepods/burstable/pod{UID}",
        f"0::/kubepods/burstable/pod{UID}/short",
        f"0::/kubepods/burstable/podnot-a-uid/{ONE}",
        f"0::/system.slice/slurmstepd.scope/job_1/step_0/{ONE}",
        f"6:freezer:/kubepods/pod{UID}/{ONE}\n5:pids:/kubepods/pod{UID}/{TWO}",
        f"0::/docker/{ONE}",
    ],
)
def test_what_names_no_pod_or_two_is_none(cgroups):
    assert place_of(cgroups) is None


def test_container_ids_are_read_without_the_runtimes_name():
    assert containers_of(pod()) == (ONE,)
    assert containers_of(Pod(Meta())) == ()


@pytest.fixture
def in_cgroup():
    """A function that starts a process in a cgroup that is named like a pod's, of this uid and container."""
    place = cgroup_root()
    if place is None:
        pytest.skip("this user may not make cgroups")
    root, started, made = place / f"rankpatrol-{os.getpid()}", [], []

    def start(uid: str, container: str) -> int:
        folder = root / "kubepods" / f"pod{uid}" / container
        folder.mkdir(parents=True, exist_ok=True)
        made.append(folder)
        words = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); print('ready', flush=True); input()"
        process = subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.communicate(b"\n")
    for folder in made:
        for each in (folder, *folder.parents):
            if each == place:
                break
            if each.is_dir() and not any(child.is_dir() for child in each.iterdir()):
                each.rmdir()


def test_only_processes_of_the_pods_own_containers_are_its_own(in_cgroup):
    """The same uid with another container, and another pod, are not."""
    own = in_cgroup(UID, ONE)
    in_cgroup(UID, TWO)
    in_cgroup(UID.replace("3", "4"), ONE)
    found = processes_of((pod(),), None)
    assert not isinstance(found, Missing)
    assert [(each.process.pid, each.step, each.node) for each in found] == [(own, "train-x", "n1")]


def test_where_none_is_here_the_nodes_are_named():
    found = processes_of((pod(),), None)
    assert isinstance(found, Missing)
    assert found.reason.endswith("they are on n1")


def test_within_a_pod_its_own_processes_have_no_name_in_their_cgroup(monkeypatch):
    """A pod's cgroup namespace shows `/` for its own container, and `/../ID` for its others."""
    texts = {"self": "0::/\n", 1: "0::/\n", 2: f"0::/../{TWO}\n", 3: f"0::/../../pod{'d' * 32}/{TWO}\n", 4: ""}
    monkeypatch.setattr(kubernetes_pids, "_text", lambda pid: texts[pid])
    monkeypatch.setattr(kubernetes_pids, "_pids", lambda: iter((1, 2, 3, 4)))
    monkeypatch.setattr(kubernetes_pids, "identify", lambda pid: pid)
    found = processes_of((pod(),), pod())
    assert [each.process for each in found] == [1, 2]
    assert isinstance(processes_of((pod(),), None), Missing), "a process at the root of a node is no pod's"


@pytest.mark.parametrize(
    ("environment", "namespace", "here", "inside"),
    [
        ({POD_UID: UID}, "", "another-host", True),
        ({POD_UID: "d" * 32}, "team", "train-x", False),
        ({}, "team", "train-x", True),
        ({}, "team", "train-0", True),
        ({}, "team", "other", False),
        ({}, "another", "train-x", False),
        ({}, "", "train-x", False),
    ],
)
def test_whether_we_are_in_the_pod(monkeypatch, environment, namespace, here, inside):
    """By uid where the manifest gave it, else by host name within the namespace; an Indexed Job's host name is not the pod's."""
    monkeypatch.setattr(kubernetes_pids.socket, "gethostname", lambda: here)
    found = pod_around_us((pod(hostname="train-0"),), namespace, environment)
    assert (found is not None) == inside


def test_our_own_cgroup_is_no_pods_here():
    assert place_of(Path("/proc/self/cgroup").read_text()) is None or "KUBERNETES_SERVICE_HOST" in os.environ
