"""Whose a process is, from cgroup paths as the runtimes write them."""

import pytest

from rankpatrol.core.records import Missing
from rankpatrol.orphans.homes import home_of, session_uid
from rankpatrol.orphans.records import Home, HomeKind

HEX = "4f" * 32
POD = "d8f0a1b2-3c4d-5e6f-7a8b-9c0d1e2f3a4b"


@pytest.mark.parametrize(
    ("path", "home"),
    [
        ("/system.slice/slurmstepd.scope/job_8123/step_0/user/task_0", Home(HomeKind.JOB, "8123")),
        ("/system.slice/node7_slurmstepd.scope/job_8123/step_batch/user/task_0", Home(HomeKind.JOB, "8123")),
        ("/slurm/uid_1000/job_8123/step_0/task_0", Home(HomeKind.JOB, "8123")),
        ("/slurm_node7/uid_1000/job_8123/step_0", Home(HomeKind.JOB, "8123")),
        ("/system.slice/slurmstepd.scope/job_8123/step_extern/user/task_special", Home(HomeKind.JOB, "8123", adopted=True)),
        ("/kubepods/burstable/pod" + POD + "/" + HEX, Home(HomeKind.POD, POD)),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{HEX}.scope",
            Home(HomeKind.POD, POD),
        ),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri-containerd-{HEX}.scope",
            Home(HomeKind.POD, POD),
        ),
        ("/docker/" + HEX, Home(HomeKind.CONTAINER, HEX)),
        (f"/system.slice/docker-{HEX}.scope", Home(HomeKind.CONTAINER, HEX)),
        (f"/machine.slice/libpod-{HEX}.scope/container", Home(HomeKind.CONTAINER, HEX)),
        ("/lxc.payload.box/init.scope", Home(HomeKind.CONTAINER, "box")),
        ("/user.slice/user-1000.slice/session-12.scope", Home(HomeKind.SESSION, "session-12.scope")),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service", Home(HomeKind.SESSION, "jupyter.service")),
        ("/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope", Home(HomeKind.SESSION, "tmux-spawn-1.scope")),
        ("/system.slice/cron.service", Home(HomeKind.SESSION, "cron.service")),
        ("/system.slice/nvidia-persistenced.service", Home(HomeKind.SERVICE, "nvidia-persistenced.service")),
        ("/system.slice/slurmd.service", Home(HomeKind.SERVICE, "slurmd.service")),
        ("/init.scope", Home(HomeKind.SERVICE, "init.scope")),
        ("/", Home(HomeKind.NONE)),
        ("/job_8123/step_0", Home(HomeKind.NONE)),
        ("/user.slice/user-1000.slice/session-1.scope/job_8123", Home(HomeKind.SESSION, "job_8123")),
    ],
)
def test_a_path_tells_whose_it_is(path: str, home: Home) -> None:
    assert home_of(f"0::{path}\n") == home


def test_the_job_is_found_in_whichever_hierarchy_names_it() -> None:
    text = "12:cpuset:/slurm/uid_1000/job_8123/step_0\n5:memory:/\n1:name=systemd:/system.slice/slurmd.service\n0::/\n"
    assert home_of(text) == Home(HomeKind.JOB, "8123")


def test_a_login_that_a_job_adopted_under_the_old_cgroups_is_still_a_login() -> None:
    text = "12:devices:/slurm/uid_1000/job_8123/step_0\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n"
    assert home_of(text) == Home(HomeKind.JOB, "8123", adopted=True)


def test_two_jobs_in_one_process_are_nobodys() -> None:
    text = "12:devices:/slurm/uid_1000/job_8123/step_0\n4:memory:/slurm/uid_1000/job_8124/step_0\n"
    assert isinstance(home_of(text), Missing)


def test_nothing_to_read_is_not_no_home() -> None:
    assert isinstance(home_of(""), Missing)


def test_a_sessions_user_is_in_its_name() -> None:
    assert session_uid("0::/user.slice/user-1000.slice/session-12.scope") == 1000
    assert session_uid("0::/system.slice/cron.service") is None
