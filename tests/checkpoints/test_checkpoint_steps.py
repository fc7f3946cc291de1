from pathlib import Path

import pytest

from rankpatrol.checkpoints.steps import step_of


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("step_000120.pt", 120),
        ("checkpoint-120.pt", 120),
        ("ckpt_120.pth", 120),
        ("epoch3_step40.pt", 40),
        ("epoch=3-step=400.ckpt", 400),
        ("step40_epoch3.pt", 40),
        ("iter_0000500_rank3.pt", 500),
        ("400steps.pt", 400),
        ("model_epoch_7.pt", 7),
        ("step_1_then_step_2.pt", 2),
        ("last.ckpt", None),
        ("checkpoint-120/optimizer.pt", 120),
        ("checkpoint-120/model_00002.bin", 120),
        ("global_step88/mp_rank_00_model_states.pt", 88),
        ("checkpoint-120/step_60.pt", 60),
        ("run7/weights.pt", None),
        ("20270101120000000000.pt", None),
    ],
)
def test_the_step_is_the_number_that_is_called_one(path: str, step: int | None) -> None:
    assert step_of(Path(path)) == step
