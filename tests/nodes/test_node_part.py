"""Whether a command is one node's part of a job of several, by what launchers say."""

import pytest

from rankpatrol.core.errors import UsageProblem
from rankpatrol.launch.nodes import Given, is_local, node_part, restarts_in_place, torchrun_options

HERE = {"SLURMD_NODENAME": "here"}
NOBODY = "192.0.2.1"  # TEST-NET-1 of RFC 5737: no machine's
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_NODEID": "2",
    "SLURM_RESTART_COUNT": "1",
    "SLURMD_NODENAME": "n3",
}


def part(command, environment=HERE, **given):
    return node_part(command.split(), environment, Given(**given))


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "torchrun --standalone --nproc-per-node 8 train.py --nnodes 4",
        "torchrun --nnodes 1 train.py",
        "torchrun --nnodes 1:1 train.py",
        "python -m torch.distributed.run --nproc-per-node 8 train.py",
        "bash -c true",
        "torchrun",
        "torchrun --nnodes",
        "torchrun --nnodes x train.py",
    ],
)
def test_a_job_on_one_node_has_no_others(command):
    assert part(command) is None


@pytest.mark.parametrize("start", ["torchrun", "/opt/env/bin/torchrun", "python -mtorch.distributed.run", "numactl -N 0 torchrun3.11"])
@pytest.mark.parametrize("nodes", ["--nnodes 4", "--nnodes=4", "--nnodes 2:4"])
def test_torchruns_own_options_tell_of_several(start, nodes):
    found = part(f"{start} --standalone {nodes} -m --rdzv_id exp-7 --rdzv-endpoint {NOBODY}:29500 train --nnodes 1")
    assert found is not None
    assert (found.node, found.first, found.run, found.host) == ("here", False, "exp-7", NOBODY)


def test_the_node_of_the_endpoint_is_the_first():
    assert part("torchrun --nnodes 2 --rdzv-id a --rdzv-endpoint 127.0.0.1:1 t.py").first
    assert part("torchrun --nnodes 2 --rdzv-id a --rdzv-endpoint localhost t.py").first
    assert not part(f"torchrun --nnodes 2 --rdzv-id a --rdzv-endpoint {NOBODY} t.py").first


def test_a_static_rendezvous_counts_its_nodes():
    first, second = (part(f"torchrun --nnodes 2 --node-rank {number} --master-addr {NOBODY} t.py") for number in (0, 1))
    assert (first.first, second.first) == (True, False)
    assert (first.node, second.node) == ("here.0", "here.1"), "two nodes of a job may share a machine"
    assert first.run == second.run == NOBODY


def test_the_environment_stands_for_options():
    assert part("torchrun t.py", {**HERE, "PET_NNODES": "3", "PET_RDZV_ID": "x"}).run == "x"


def test_slurm_tells_which_node_of_a_step_we_are():
    found = part("torchrun --nnodes 4 --rdzv-endpoint n1:1 t.py", SLURM)
    assert (found.node, found.first, found.run, found.host) == ("n3", False, "slurm-77.0.1", "n1")
    assert part("torchrun --nnodes 4 t.py", {**SLURM, "SLURM_NODEID": "0"}).first


def test_each_task_of_srun_is_no_node():
    assert part("python train.py", SLURM) is None


def test_a_name_that_all_know_is_needed():
    with pytest.raises(UsageProblem) as problem:
        part("torchrun --nnodes 2 t.py")
    assert "--run-id" in problem.value.help
    assert part("torchrun --nnodes 2 t.py", run_id="exp7").run == "exp7"
    assert part("torchrun --nnodes 2 --rdzv-id none t.py", run_id="exp7").run == "exp7"


def test_an_exchange_by_hand_says_who_is_first():
    assert part("bash train.sh", exchange="nats://127.0.0.1:4222", run_id="a").first
    assert not part("bash train.sh", exchange=f"nats://secret@{NOBODY}:4222", run_id="a").first


@pytest.mark.parametrize("host", ["", "no-such-host.invalid", "a b", "\udcff", "x" * 300, NOBODY, "::ffff:192.0.2.1"])
def test_what_is_not_ours_is_not_local(host):
    assert not is_local(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_our_own_addresses_are(host):
    assert is_local(host)


def test_scripts_own_words_are_not_torchruns():
    assert torchrun_options(["torchrun", "-m", "train", "--nnodes", "9"], {})["nnodes"] == "1:1"


@pytest.mark.parametrize(
    ("command", "lent", "known"),
    [
        ("torchrun --max-restarts 2 train.py", "3", 2),
        ("torchrun --max_restarts=0 train.py", "3", 0),
        ("torchrun train.py --max-restarts 2", "3", 3),
        ("torchrun train.py", None, 0),
        ("torchrun --max-restarts many train.py", "3", None),
        ("python train.py", "3", None),
    ],
)
def test_how_often_a_node_starts_its_ranks_again(command, lent, known):
    assert restarts_in_place(command.split(), {} if lent is None else {"PET_MAX_RESTARTS": lent}) == known


def test_in_a_heterogeneous_job_torchruns_word_counts_and_not_slurms():
    said = {**SLURM, "SLURM_HET_SIZE": "2", "SLURM_NODEID": "0"}
    made = part(f"torchrun --nnodes 4 --rdzv-id exp7 --rdzv-endpoint {NOBODY}:29500 train.py", said)
    assert (made.first, made.run) == (False, "exp7")


def test_what_is_queued_again_under_a_users_own_name_is_another_run():
    assert part("torchrun --nnodes 2 t.py", SLURM, run_id="exp7").run == "exp7.1"
    assert part("torchrun --nnodes 2 t.py", {**SLURM, "SLURM_RESTART_COUNT": "0"}, run_id="exp7").run == "exp7"
    by_hand = {**HERE, "SLURM_RESTART_COUNT": "1"}
    assert part("torchrun --nnodes 2 t.py", by_hand, run_id="exp7").run == "exp7", "nodes of several jobs were not all queued again"
