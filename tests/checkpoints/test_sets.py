"""What must not be taken for damage, and what only a whole set can tell."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from shelves import DATA, SHELVES, put
from spoiled_checkpoints import StandingClock

from rankpatrol.checkpoints.dcp_metadata import Chunk, Entry, Plan, Stored, gap_in
from rankpatrol.checkpoints.newest import list_checkpoints, newest_good
from rankpatrol.checkpoints.report import CheckpointReport, Selection
from rankpatrol.checkpoints.set_verifier import SetVerifier
from rankpatrol.checkpoints.sets.ranked import missing_ranks
from rankpatrol.checkpoints.verifier import Closeness, Verifier

GB = 1 << 30


def look(folder: Path) -> CheckpointReport:
    return SetVerifier(Verifier(StandingClock(1_790_100_000))).verify(folder)


def select(folder: Path) -> Selection:
    return newest_good(folder, Verifier(StandingClock(1_790_100_000)))


def shelf_named(name: str, folder: Path) -> Path:
    return put(next(shelf for shelf in SHELVES if shelf.name == name), folder)


def save(path: Path, state: Any) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["rank0.pt", "rank1.pt", "rank3.pt"], ["rank2.pt"]),
        (["rank_00.pt", "rank_02.pt", "rank_03.pt"], ["rank_01.pt"]),
        (["model_world_size_4_rank_0.pt"], [f"model_world_size_4_rank_{rank}.pt" for rank in (1, 2, 3)]),
        (["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"], ["model-00002-of-00003.safetensors"]),
        (["part-00000-of-00002.bin", "part-00001-of-00002.bin"], []),
        (["rng_state_0.pth", "rng_state_2.pth"], ["rng_state_1.pth"]),
        (["rank0.pt", "rank8.pt", "rank16.pt"], []),
        (["rank0.pt", "rank2.pt", "rank4.pt", "rank6.pt"], []),
        (["adapter_rank8.bin", "adapter_rank16.bin"], []),
        (["franklin2.pt", "franklin4.pt"], []),
    ],
)
def test_which_ranks_are_missing(names: list[str], missing: list[str]) -> None:
    assert missing_ranks(names) == missing


def test_a_trainer_that_wrote_nan_for_a_loss_is_whole(tmp_path: Path) -> None:
    folder = shelf_named("hf_trainer", tmp_path) / "checkpoint-4"
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"][0]["loss"] = float("nan")
    (folder / "trainer_state.json").write_text(json.dumps(state))
    assert look(folder).verdict == "ok"


def test_a_trainers_output_directory_is_a_shelf_and_its_last_model_no_place_to_resume_from(tmp_path: Path) -> None:
    folder = shelf_named("hf_trainer", tmp_path)
    for name in ("model.safetensors", "training_args.bin", "trainer_state.json", "config.json"):
        shutil.copyfile(folder / "checkpoint-4" / name, folder / name)
    selection = select(folder)
    assert selection.newest_good is not None
    assert selection.newest_good.path == str(folder / "checkpoint-4")
    assert selection.rejected == ()


def test_a_shelf_of_single_safetensors_is_no_set(tmp_path: Path) -> None:
    for step in (1, 2):
        shutil.copyfile(DATA / "accelerate" / "checkpoint_4" / "model.safetensors", tmp_path / f"step_{step}.safetensors")
    assert [candidate.step for candidate in list_checkpoints(tmp_path).candidates] == [2, 1]


def test_files_of_ranks_on_a_flat_shelf_make_one_checkpoint_a_step(tmp_path: Path) -> None:
    for step in (1, 2):
        for rank in range(3):
            save(tmp_path / f"step_{step}_rank{rank}.pt", {"step": step})
    (tmp_path / "step_2_rank1.pt").unlink()
    selection = select(tmp_path)
    assert selection.newest_good is not None
    assert selection.newest_good.step == 1
    assert len(selection.beside) == 2
    assert [report.file for report in selection.rejected] == [str(tmp_path / "step_2_rank1.pt")]


def test_a_directory_that_is_a_link_to_elsewhere_counts_and_one_to_its_neighbour_does_not(tmp_path: Path) -> None:
    real = shelf_named("fsdp_ranks", tmp_path / "elsewhere")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "step_4").symlink_to(real / "step_4")
    (shelf / "latest").symlink_to("step_4")
    assert [candidate.path.name for candidate in list_checkpoints(shelf).candidates] == ["step_4"]


def test_fewer_ranks_of_sharded_states_are_no_damage_where_the_layout_accounts_for_them(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    folder = shelf_named("dcp_fsdp", tmp_path)
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": {"w": torch.ones(3)}}, checkpoint_id=folder / "step_6", no_dist=True)
    assert len(list((folder / "step_6").glob("*.distcp"))) < len(list((folder / "step_4").glob("*.distcp")))
    selection = select(folder)
    assert selection.newest_good is not None
    assert selection.newest_good.step == 6


def test_the_best_model_so_far_is_not_missed_where_a_later_step_has_none(tmp_path: Path) -> None:
    folder = shelf_named("fsdp_ranks", tmp_path)
    save(folder / "step_2" / "best.pt", {"a": 1})
    assert select(folder).rejected == ()


def test_a_file_that_shrank_to_less_than_half_is_not_vouched_for(tmp_path: Path) -> None:
    import torch

    for step, size in ((1, 600_000), (2, 600_000), (3, 1000)):
        for rank in (0, 1):
            save(tmp_path / f"step_{step}" / f"rank{rank}.pt", {"w": torch.ones(size if rank else 600_000)})
    selection = select(tmp_path)
    assert selection.newest_good is not None
    assert selection.newest_good.step == 2
    assert (selection.rejected[0].verdict, selection.rejected[0].file) == ("unknown", str(tmp_path / "step_3" / "rank1.pt"))


def test_weights_alone_in_a_trainers_folder_are_a_save_that_just_began(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-6"
    folder.mkdir()
    shutil.copyfile(DATA / "hf_trainer" / "checkpoint-4" / "model.safetensors", folder / "model.safetensors")
    report = SetVerifier(Verifier()).verify(folder)
    assert (report.verdict, report.file) == ("incomplete", str(folder / "trainer_state.json"))
    assert "may still be being written" in report.sentence
    os.utime(folder / "model.safetensors", (1_790_000_000, 1_790_000_000))
    assert look(folder).verdict == "ok"


def test_a_nan_in_a_dcp_shard_is_named_by_its_tensor(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings(action="ignore"):
        dcp.save({"good": torch.ones(9), "bad": torch.tensor([1.0, float("nan")])}, checkpoint_id=tmp_path / "step_1", no_dist=True)
    report = SetVerifier(Verifier(closeness=Closeness(numbers=True))).verify(tmp_path / "step_1")
    assert (report.verdict, report.key) == ("corrupt", "bad")


def test_a_dcp_save_in_progress_is_incomplete_and_may_still_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "step_9"
    shutil.copytree(DATA / "dcp_fsdp" / "step_4", folder)
    (folder / ".metadata").unlink()
    for path in folder.iterdir():
        os.utime(path)
    report = SetVerifier(Verifier()).verify(folder)
    assert report.verdict == "incomplete"
    assert "it may still be being written" in report.sentence


def test_deepspeed_with_node_local_storage_keeps_only_its_own_ranks(tmp_path: Path) -> None:
    import torch

    source = DATA / "deepspeed_zero1" / "global_step4"
    folder = tmp_path / "global_step4"
    shutil.copytree(source, folder)
    state = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)
    state["ds_config"]["checkpoint"] = {"use_node_local_storage": True}
    torch.save(state, folder / "mp_rank_00_model_states.pt")
    (folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert look(folder).verdict == "ok"


def test_a_megatron_set_without_its_last_written_file_is_incomplete(tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000005"
    save(folder / "common.pt", {"iteration": 5})
    report = look(folder)
    assert (report.layout, report.verdict, report.file) == ("megatron", "incomplete", str(folder / "metadata.json"))


def plan(*chunks: tuple[tuple[int, ...], tuple[int, ...]], sizes: tuple[int, ...] = (4, 4)) -> Plan:
    described = tuple(Chunk(offsets, extent) for offsets, extent in chunks)
    stored = tuple(Stored("w", offsets, "__0_0.distcp", 10 * at, 10) for at, (offsets, _) in enumerate(chunks))
    return Plan((Entry("w", sizes, described),), stored)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (plan(((0, 0), (2, 4)), ((2, 0), (2, 4))), None),
        (plan(((0, 0), (4, 2)), ((0, 2), (4, 2))), None),
        (plan(((), ()), sizes=()), None),
        (plan(((0,), (0,)), sizes=(0,)), None),
        (plan(((0, 0), (2, 4))), "hold 8 elements of 16"),
        (plan(((0, 0), (2, 4)), ((3, 0), (2, 4))), "reach beyond its size"),
        (plan(((0, 0), (2, 4)), ((1, 0), (2, 4))), "overlap"),
        (plan(((0, 0, 0), (2, 4, 1))), "reach beyond its size"),
    ],
)
def test_chunks_must_cover_each_tensor_once(given: Plan, said: str | None) -> None:
    gap = gap_in(given)
    assert gap is None if said is None else gap is not None and said in gap.said


def test_a_tensor_that_no_file_holds_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "step_4"
    shutil.copytree(DATA / "dcp_fsdp" / "step_4", folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    lost = next(index for index in metadata.storage_data if index.fqn == "model.0.weight")
    del metadata.storage_data[lost]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    report = look(folder)
    assert (report.verdict, report.key, report.file) == ("corrupt", "model.0.weight", str(folder / ".metadata"))


def test_a_dcp_set_saved_without_collectives_has_a_metadata_of_each_rank(tmp_path: Path) -> None:
    folder = tmp_path / "step_4"
    folder.mkdir()
    for rank in (0, 1):
        with warnings.catch_warnings(action="ignore"):
            _save_alone(folder, rank)
    assert sorted(path.name for path in folder.iterdir()) == ["__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp"]
    assert look(folder).verdict == "ok"
    data = bytearray((folder / "__1_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "__1_0.distcp").unlink()
    assert look(folder).file == str(folder / "__1_0.distcp")
    (folder / "__1_0.distcp").write_bytes(data)
    assert (look(folder).verdict, look(folder).key) == ("corrupt", "w")
    data[len(data) // 2] ^= 1
    (folder / "__1_0.distcp").write_bytes(data)
    (folder / "__0.metadata").unlink()
    assert look(folder).file == str(folder / "__0.metadata")


def _save_alone(folder: Path, rank: int) -> None:
    """As torch does for each rank with use_collectives=False."""
    import torch
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    writer, planner = FileSystemWriter(folder), DefaultSavePlanner()
    writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=False)
    planner.set_up_planner({"w": torch.rand(50, 50)}, writer.storage_meta(), True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([local])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    results = writer.write_data(plan, planner).wait()
    writer.finish(metadata, [results])


def test_names_that_a_file_chooses_move_no_cursor(tmp_path: Path) -> None:
    folder = shelf_named("weights", tmp_path) / "step_4"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["\x1b[2J"] = "../../etc/\x1b[31m\n.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    report = look(folder)
    assert report.verdict == "incomplete"
    assert report.sentence.isprintable()


@pytest.mark.parametrize(
    ("source", "name"),
    [("deepspeed_zero1/global_step4", "step_64"), ("hf_trainer/checkpoint-4", "run_step_2"), ("megatron/iter_0000004", "step_9")],
)
def test_a_name_of_the_users_own_may_count_otherwise(tmp_path: Path, source: str, name: str) -> None:
    shutil.copytree(DATA / source, tmp_path / name)
    assert look(tmp_path / name).verdict == "ok"


@pytest.mark.parametrize("kept", [{}, {"ModelCheckpoint": {"best_k_models": {"/runs/a/epoch=0-step=2.ckpt": 0.5}}}])
def test_a_lightning_name_that_counts_a_metric_called_step_is_no_damage(tmp_path: Path, kept: dict[str, Any]) -> None:
    path = tmp_path / "epoch=0-step=2.ckpt"
    save(path, {"epoch": 0, "global_step": 400, "pytorch-lightning_version": "2.6.6", "callbacks": kept})
    report = Verifier().verify(path)
    assert (report.layout, report.verdict) == ("lightning", "ok")


# The two ranks' optimizers of one DCP set, each with its values of `step`; data parallel ranks share the parameters among them.
TWO_RANKS = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)]))
optimizer = torch.optim.AdamW(model.parameters())
for step in (1, 2, 3, 4):
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": moments}, checkpoint_id=f"{folder}/shelf/step_{step}")
dist.destroy_process_group()
os._exit(0)  # all is saved; threads of torch's own have aborted an exit on a busy machine ("terminate called without an active exception")
"""


@pytest.fixture(scope="session")
def two_dcp_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 2 and 4 as two ranks saved them."""
    folder = tmp_path_factory.mktemp("dcp")
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", TWO_RANKS, str(rank), str(folder)]) for rank in (0, 1)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    return folder / "shelf"


@pytest.fixture
def dcp_shelf(two_dcp_steps: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_dcp_steps, tmp_path / "shelf"))


@pytest.mark.timeout(90)
def test_ranks_that_saved_together_leave_no_doubt(dcp_shelf: Path) -> None:
    assert [look(dcp_shelf / name).more for name in ("step_2", "step_4")] == [(), ()]


def test_a_shard_of_another_step_is_a_doubt_as_parts_of_a_model_may_be_trained_later(dcp_shelf: Path) -> None:
    shutil.copyfile(dcp_shelf / "step_2" / "__1_0.distcp", dcp_shelf / "step_4" / "__1_0.distcp")
    report = look(dcp_shelf / "step_4")
    assert (report.verdict, report.content_verified) == ("ok", False)
    assert report.more == (
        "__1_0.distcp holds an optimizer that stands at step 2, __0_0.distcp at 4: whether both are of one save is not known",
    )


def test_a_shard_that_an_older_checkpoint_has_too_is_left_over_from_it(dcp_shelf: Path) -> None:
    shutil.copyfile(dcp_shelf / "step_2" / "__1_0.distcp", dcp_shelf / "step_4" / "__1_0.distcp")
    selection = select(dcp_shelf)
    assert selection.newest_good is not None
    assert selection.newest_good.step == 2
    (rejected,) = selection.rejected
    assert (rejected.verdict, rejected.cause) == ("incomplete", "ckpt_incomplete_set")
    assert "__1_0.distcp is not of this save: it is byte by byte that of step_2, its optimizer at step 2" in rejected.sentence


def test_where_all_shards_are_those_of_the_older_one_it_is_a_copy_and_not_mixed(dcp_shelf: Path) -> None:
    shutil.copyfile(dcp_shelf / "step_2" / "__1_0.distcp", dcp_shelf / "step_4" / "__1_0.distcp")
    shutil.rmtree(dcp_shelf / "step_2")
    shutil.copytree(dcp_shelf / "step_4", dcp_shelf / "step_3")
    assert select(dcp_shelf).rejected == ()
