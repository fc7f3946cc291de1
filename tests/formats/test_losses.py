"""Losses in log lines, as frameworks write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.formats.losses import LossMark, find_loss

LOST = [
    "step 31/120 loss nan (0.20 s)",
    "{'loss': nan, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}",
    '{"step": 31, "train_loss": NaN, "lr": 0.1}',
    "iter 120: loss nan, time 135.11ms, mfu 9.76%",
    " iteration      120/    5000 | consumed samples: 1920 | lm loss: NAN | loss scale: 1.0 | grad norm: nan |",
    "Epoch 3:  24%|##  | 120/500 [00:12<00:38, train_loss=nan, v_num=3]",
    "Epoch: [3][ 120/5004] Time 0.2 (0.2) Loss nan (nan)",
    "loss: inf",
    "step: 12  loss:  -inf  memory: 12GiB",
    "loss = tensor(nan, device='cuda:0')",
    "step 3 train/loss=nan",
    "train_loss nan val_loss 0.2",
    "step 3 train_loss nan val_loss nan",
    "step 3 policy_loss nan value_loss 0.1",
    "latest loss nan",
    " iteration 120/ 5000 | lm loss: NAN | load_balancing_loss: 1.0E+00 |",
]
KEPT = [
    ("step 31/120 loss 0.412 (0.20 s)", "0.412"),
    ("{'loss': 2.31, 'grad_norm': nan}", "2.31"),
    ("lm loss: 6.9E-01 | loss scale: 1.0", "6.9e-01"),
    ("loss=1e-4", "1e-4"),
    ("step 12 train_loss 0.12 val_loss nan", "0.12"),
    ("Epoch 0:  5%|##  | 5/150 [00:01<00:05, loss=0.123, v_num=3, val_loss=nan.0]", "0.123"),
    ("step 7 loss 0.12 aux_loss nan grad_norm inf", "0.12"),
    ("step 7 val_loss nan loss 0.12", "0.12"),
    ("step 7 kl_loss nan, loss 0.12", "0.12"),
]
NONE = [
    "the loss is not known yet",
    "early stopping: no loss nan found",
    "skipped loss nan batches: 3",
    "lossless compression 12",
    "loss scale 65536",
    "min loss: inf",
    "nan in gradients",
    "loss function: MSELoss",
    "loss info: see below",
    "packet loss 3%",
    "val_loss=nan (not evaluated yet)",
    "{'eval_loss': nan, 'best_metric': inf}",
    "Validation loss: nan",
    "[test] loss nan",
    "valid/ce_loss nan",
]
ASIDE = ["val_loss 0.3", "eval loss: 0.3"]


@pytest.mark.parametrize("line", LOST)
def test_a_loss_that_is_no_number_is_seen(line):
    found = find_loss(line)
    assert found is not None
    assert found.lost


@pytest.mark.parametrize(("line", "text"), KEPT)
def test_a_loss_that_is_a_number_is_one(line, text):
    assert find_loss(line) == LossMark(text, False)


@pytest.mark.parametrize("line", NONE)
def test_what_is_no_loss_is_not_taken_for_a_lost_one(line):
    found = find_loss(line)
    assert found is None or not found.lost


@pytest.mark.parametrize("line", ASIDE)
def test_a_number_of_a_validation_does_not_end_a_training_loss_that_is_lost(line):
    assert find_loss(line) is None


@given(st.text(max_size=200))
def test_any_line_is_read(line):
    find_loss(line)
    find_loss(f"loss {line}")
