"""Which processes are which ranks: tables of what launchers leave behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.discover.jobs import matching, numbered, survey
from rankpatrol.discover.records import Candidate

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def process(pid, parent, environment=None, *, name="python", command=("python", "train.py"), threads=(), uid=1000):
    return Candidate(
        id=ProcessId("boot", pid, 1000 + pid),
        parent_pid=parent,
        uid=uid,
        name=name,
        command=command,
        environment={} if environment is None else environment,
        thread_names=frozenset(threads),
    )


def rank(number, pid, parent=10, world=4, **more):
    variables = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world), **TORCHRUN}
    return process(pid, parent, {**variables, **more.pop("environment", {})}, **more)


LAUNCHER = process(10, 1, name="torchrun", command=("python", "torchrun", "train.py"))
RANKS = [rank(number, 20 + number) for number in range(4)]


def test_torchruns_ranks_are_one_job_below_their_launcher():
    (job,) = survey([LAUNCHER, *RANKS]).jobs
    assert [(each.rank, each.process.pid) for each in job.ranks] == [(0, 20), (1, 21), (2, 22), (3, 23)]
    assert (job.launcher.pid, job.name, job.world_size) == (10, "train", 4)


def test_loader_processes_carry_their_ranks_variables_and_are_none():
    loaders = [rank(1, 40 + number, parent=21, name="pt_data_worker") for number in range(2)]
    forked = rank(2, 50, parent=22)  # an older torch does not rename them
    (job,) = survey([LAUNCHER, *loaders, forked, *RANKS]).jobs
    assert [each.process.pid for each in job.ranks] == [20, 21, 22, 23]


def test_a_shell_above_a_rank_is_not_the_rank():
    shell = rank(0, 19, name="bash", command=("bash", "-c", "python train.py"))
    below = rank(0, 20, parent=19)
    (job,) = survey([LAUNCHER, shell, below, *RANKS[1:]]).jobs
    assert job.ranks[0].process.pid == 20
    assert job.launcher.pid == 10


def test_a_rank_in_a_process_group_is_preferred_to_a_wrapper_in_python():
    wrapper = rank(0, 19)
    below = rank(0, 20, parent=19, threads=("gloo_tcp_loop",))
    (job,) = survey([LAUNCHER, wrapper, below, *RANKS[1:]]).jobs
    assert job.ranks[0].process.pid == 20


def test_under_srun_a_torchruns_own_rank_variable_wins():
    srun = {"SLURM_JOB_ID": "812", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    launcher = process(10, 1, srun, name="torchrun", command=("/opt/conda/bin/python", "/opt/conda/bin/torchrun", "train.py"))
    ranks = [rank(number, 20 + number, environment=srun) for number in range(4)]
    (job,) = survey([launcher, *ranks]).jobs
    assert (len(job.ranks), job.name, {each.told_by for each in job.ranks}) == (4, "812", {"torchrun"})
    assert [each.process.pid for each in job.ranks] == [20, 21, 22, 23]
    assert job.launcher.pid == 10


def test_a_torchrun_that_srun_has_numbered_is_no_rank():
    srun = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    ours = process(9, 1, srun, name="python3", command=("python3", "-m", "rankpatrol", "run", "torchrun"))
    launcher = process(10, 9, srun, name="python3", command=("python3", "my_launcher.py"))
    ranks = [rank(number, 20 + number, environment=srun) for number in range(4)]
    (job,) = survey([ours, launcher, *ranks]).jobs
    assert len(job.ranks) == 4
    assert survey([ours]).jobs == ()


def test_a_batch_script_has_a_tasks_number_and_is_no_task():
    batch = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert numbered(process(30, 1, batch)) is None


@pytest.mark.parametrize(
    ("variables", "told_by"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "Open MPI"),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, "PMI"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3", "SLURM_STEP_ID": "0"}, "Slurm"),
    ],
)
def test_other_launchers_number_their_ranks_too(variables, told_by):
    found = numbered(process(30, 1, variables))
    assert (found.rank, found.world_size, found.told_by) == (3, 8, told_by)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "1", "WORLD_SIZE": "9" * 5000},
        {"RANK": "x", "WORLD_SIZE": "4"},
        {"RANK": "0"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
    ],
)
def test_numbers_that_make_no_sense_number_nobody(variables):
    assert numbered(process(30, 1, variables)) is None


def test_a_page_of_digits_is_no_rank():
    digits = "1" * 5000
    assert numbered(process(30, 1, {"RANK": digits, "WORLD_SIZE": digits + "9", "LOCAL_RANK": digits})) is None


def test_a_member_of_a_group_without_a_number_is_told_of_and_never_guessed():
    spawned = process(30, 10, threads=("gloo_tcp_loop",))
    hidden = process(31, 10, Missing("the kernel refuses it"), threads=("pt_nccl_watchdg",))
    found = survey([LAUNCHER, spawned, hidden])
    assert found.jobs == ()
    assert "mp.spawn" in found.unnumbered[0].why
    assert found.unnumbered[1].why == "the kernel refuses it"


def test_two_jobs_with_the_id_none_and_one_port_are_two():
    other = process(11, 1, name="torchrun")
    twins = [rank(number, 60 + number, parent=11) for number in range(4)]
    assert len(survey([LAUNCHER, other, *RANKS, *twins]).jobs) == 2


def test_a_job_under_run_says_whose_it_is_and_its_shims_are_no_ranks():
    ours = {"RANKPATROL_RUN_DIR": "/tmp/rankpatrol-x"}
    shims = [
        rank(n, 30 + n, environment=ours, command=("python", "-I", "-S", "/site/rankpatrol/launch/shim", "10", "python")) for n in range(2)
    ]
    ranks = [rank(n, 40 + n, parent=30 + n, environment=ours, world=2) for n in range(2)]
    (job,) = survey([LAUNCHER, *shims, *ranks]).jobs
    assert ([each.process.pid for each in job.ranks], job.patrolled_by, job.launcher.pid) == ([40, 41], "/tmp/rankpatrol-x", 10)


@pytest.mark.parametrize("pid", [5, 10, 22, 70])
def test_a_job_is_found_by_its_launcher_what_is_above_or_any_process_of_it(pid):
    loader = rank(2, 70, parent=22, name="pt_data_worker")
    script = process(5, 1, name="bash")
    launcher = process(10, 5, name="torchrun")
    seen = [script, launcher, loader, *RANKS]
    above = {each.id.pid: each.parent_pid for each in seen}
    assert len(matching(survey(seen), pid=pid, job=None, parents=above)) == 1
    assert matching(survey(seen), pid=99, job=None, parents=above) == ()


def test_ranks_below_a_shell_have_no_launcher():
    shell = process(10, 1, name="bash", command=("bash", "start.sh"))
    (job,) = survey([shell, *RANKS]).jobs
    assert job.launcher is None


@pytest.mark.parametrize("command", [("python", "-m", "torch.distributed.run", "t.py"), ("python", "/opt/bin/accelerate", "launch")])
def test_launchers_are_known_by_their_words(command):
    (job,) = survey([process(10, 1, command=command), *RANKS]).jobs
    assert job.launcher.pid == 10


def test_a_job_is_found_by_its_id():
    found = survey([LAUNCHER, *(rank(n, 20 + n, environment={"TORCHELASTIC_RUN_ID": "nightly"}) for n in range(4))])
    assert len(matching(found, pid=None, job="nightly", parents={})) == 1
    assert matching(found, pid=None, job="other", parents={}) == ()


def test_an_id_that_torchrun_made_up_finds_a_job_and_is_not_its_name():
    made_up = "0b3c5d1e-8d1f-4c47-9a51-6f0b8e4f7a20"
    found = survey([LAUNCHER, *(rank(n, 20 + n, environment={"TORCHELASTIC_RUN_ID": made_up}) for n in range(4))])
    assert [job.name for job in matching(found, pid=None, job=made_up, parents={})] == ["train"]


@given(st.permutations([LAUNCHER, *RANKS, process(90, 1), rank(0, 95, parent=20)]))
def test_the_order_in_which_processes_are_seen_changes_nothing(seen):
    (job,) = survey(seen).jobs
    assert sorted(each.process.pid for each in job.ranks) == [20, 21, 22, 23]
