"""What `run` and the shim reckon with of torchrun, held against each version from 2.0 to 2.13."""

import re

import pytest
from torch_surfaces import ELASTIC, SURFACES, VERSIONS, at_least

from rankpatrol.affinity.visible import LOCAL_RANKS
from rankpatrol.launch.shim.deadlines import DEADLINES, as_patient_as, shutdown_timeout_s
from rankpatrol.launch.shim.kernel import _LOADER
from rankpatrol.launch.shim.placing import TOGETHER, TORCHRUN, VIRTUAL
from rankpatrol.launch.shim.rank_environment import LENT
from rankpatrol.launch.shim.torchrun_flags import SHORT_WITHOUT_VALUE, WITHOUT_VALUE, read_flags, torchruns_words
from rankpatrol.launch.torchrun_words import PAST_THE_SHIM, past_the_shim

every_version = pytest.mark.parametrize("version", VERSIONS)


def test_the_versions_that_are_recorded_reach_from_the_first_to_the_last_that_is_supported() -> None:
    assert [version.rpartition(".")[0] for version in VERSIONS] == [f"2.{minor}" for minor in range(14)]


@every_version
def test_what_is_lent_to_torchrun_has_its_effect_or_is_not_needed(version: str) -> None:
    surface = SURFACES[version]
    read = {*surface["environment"]["read"], *(flag.get("variable") for flag in surface["torchrun"].values())}
    # Before 2.5 the ranks' store was their own: there is nothing to switch off.
    needless = set() if surface["shares_rendezvous_store"] else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
    assert set(LENT) - needless <= read
    assert at_least(version, "2.5") == surface["shares_rendezvous_store"]


@every_version
def test_the_users_own_flag_for_restarts_is_there_and_none_is_the_default(version: str) -> None:
    flag = SURFACES[version]["torchrun"]["--max-restarts"]
    assert (flag["default"], flag["action"]) == (0, "env")


@every_version
def test_what_tells_a_ranks_place_is_set_for_it(version: str) -> None:
    told = set(SURFACES[version]["environment"]["set_for_ranks"])
    assert {TORCHRUN.rank, TORCHRUN.local_rank, *TORCHRUN.world_size, *LOCAL_RANKS[0], "TORCHELASTIC_RESTART_COUNT"} <= told
    assert {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "WORLD_SIZE"} <= told & set(TOGETHER)
    assert set(VIRTUAL) <= told
    # Only with --virtual-local-rank does torchrun set which GPUs a rank sees.
    assert ("CUDA_VISIBLE_DEVICES" in told) == ("--virtual-local-rank" in SURFACES[version]["torchrun"])


@every_version
def test_which_flags_take_no_value_is_known(version: str) -> None:
    flags = SURFACES[version]["torchrun"]
    without = {name for name, flag in flags.items() if flag["action"] in {"check_env", "store_true"}}
    assert without <= WITHOUT_VALUE
    assert not {name for name in flags if name not in without} & WITHOUT_VALUE
    short = {name[1:]: flag for flag in flags.values() for name in flag["names"] if re.fullmatch("-.", name)}
    assert {letter for letter, flag in short.items() if flag["action"] == "check_env"} <= SHORT_WITHOUT_VALUE
    assert set(PAST_THE_SHIM) <= set(flags)


@every_version
def test_the_shim_is_done_before_torchrun_kills_it(version: str) -> None:
    assert DEADLINES.kill_s + DEADLINES.descendants_s < SURFACES[version]["seconds_before_kill"]


@every_version
def test_how_long_torchrun_waits_can_be_told_where_it_takes_that(version: str) -> None:
    flag = SURFACES[version]["torchrun"].get("--shutdown-timeout")
    assert (flag is not None) == at_least(version, "2.12")
    assert flag is None or flag["variable"] == "PET_SHUTDOWN_TIMEOUT"


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        ("python torchrun train.py --shutdown-timeout 7", {}, None),
        ("python /env/bin/torchrun --standalone --nproc-per-node 4 --shutdown-timeout 7 train.py", {}, 7),
        ("python -m torch.distributed.run -m --shutdown_timeout=7 train", {}, 7),
        ("torchrun --max-restarts 3 --shutdown-timeout 7 train.py", {"PET_SHUTDOWN_TIMEOUT": "8"}, 7),
        ("torchrun train.py", {"PET_SHUTDOWN_TIMEOUT": "8", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}, 8),
        ("torchrun train.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}, 9),
        ("torchrun --shutdown-timeout soon train.py", {}, None),
        ("torchrun -mr3 --shutdown-timeout 7 train", {}, 7),
        ("bash train.sh --shutdown-timeout 7", {}, None),
        ("torchrun --shutdown-timeout", {}, None),
    ],
)
def test_what_torchrun_was_told_of_its_patience_is_read(words: str, environment: dict[str, str], told: float | None) -> None:
    assert shutdown_timeout_s(words.split(), environment) == told


@pytest.mark.parametrize("seconds", [0.5, 1.0, 5.0, 29.0, 30.0, 31.0, 120.0, 3600.0])
def test_a_rank_has_the_time_that_its_user_gives_it_and_the_shim_is_done_before_it_is_over(seconds: float) -> None:
    ours = as_patient_as(DEADLINES, seconds)
    assert ours.term_after_int_s < ours.kill_s < ours.kill_s + ours.descendants_s < seconds
    assert ours.kill_s >= min(seconds / 2, seconds - 5)
    assert (ours == DEADLINES) == (seconds == 30)


@every_version
def test_a_loader_that_leaves_by_itself_is_waited_for_long_enough_and_known_by_its_name(version: str) -> None:
    surface = SURFACES[version]
    assert DEADLINES.loaders_leave_s > surface["loader_looks_every_s"]
    assert (_LOADER in surface["thread_names"]) == at_least(version, "2.5")


@every_version
def test_only_an_old_torchrun_leaves_its_ranks_in_its_own_session(version: str) -> None:
    assert SURFACES[version]["ranks_lead_sessions"] == at_least(version, "2.2")


@every_version
def test_the_launchers_signal_is_one_that_the_shim_hears(version: str) -> None:
    lines = SURFACES[version]["log_lines"][ELASTIC + "multiprocessing/api.py"]
    assert any(line.startswith("Sending process {} closing signal") for line in lines)


@pytest.mark.parametrize(
    ("command", "past"),
    [
        ("torchrun train.py --no-python", None),
        ("torchrun --nproc-per-node 2 train.py --run-path", None),
        ("torchrun --standalone --nproc_per_node=2 --no_python ./start.sh x", ("--no-python", "./start.sh")),
        ("python -m torch.distributed.run --no-python --nproc-per-node 2 ./start.sh", ("--no-python", "./start.sh")),
        ("/env/bin/torchrun -t 3 --run-path /abs/train.py", ("--run-path", "/abs/train.py")),
        ("srun torchrun --no-python ./start.sh", ("--no-python", "./start.sh")),
        ("torchrun --no-python rankpatrol shim -- ./start.sh", None),
        ("torchrun -r3 -m pack.train --no-python", None),
        ("torchrun -mr 3 pack.train", None),
        ("torchrun --no-python", None),
        ("torchrun --role --no-python train.py", None),
        ("python train.py --no-python torch.distributed.run", None),
        ("./start.sh", None),
    ],
)
def test_ranks_that_start_past_the_shim_are_known(command: str, past: tuple[str, str] | None) -> None:
    seen = past_the_shim(command.split(), {})
    assert (None if seen is None else (seen.by, seen.program)) == past


def test_a_variable_counts_as_its_flag() -> None:
    seen = past_the_shim(["torchrun", "./start.sh"], {"PET_NO_PYTHON": "1", "PET_RUN_PATH": "0"})
    assert seen is not None
    assert seen.by == "PET_NO_PYTHON"


def test_the_programs_own_words_are_no_flags_of_torchruns() -> None:
    words = torchruns_words(["torchrun", "--tee", "3", "-m", "pack.train", "--standalone"])
    assert words is not None
    assert read_flags(words) == ({"--tee": "3", "-m": ""}, ["pack.train", "--standalone"])


@pytest.mark.parametrize(
    "start",
    [
        "torchrun",
        "/opt/env/bin/torchrun3.11",
        "numactl -N 0 torchrun",
        "python -m torch.distributed.run",
        "python3 -u -mtorch.distributed.launch",
    ],
)
def test_torchrun_is_found_however_it_is_started(start: str) -> None:
    assert torchruns_words([*start.split(), "--nnodes", "2", "train.py"]) == ["--nnodes", "2", "train.py"]


@pytest.mark.parametrize("command", ["python train.py", "bash torchrun.sh", "python -c torch.distributed.run", "my-torchrun train.py", ""])
def test_what_only_looks_like_it_is_no_torchrun(command: str) -> None:
    assert torchruns_words(command.split()) is None
