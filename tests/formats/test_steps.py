import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.formats.steps import PATTERNS, StepMark, Strength, find_step, further

NAMED = [
    ("step 120", 120),
    ("step: 120 loss 3.2", 120),
    ("step=120, skipped=0, lr=[1e-5], mom=[(0.9, 0.95)]", 120),
    ("[step 120/5000] loss=2.81 lr=3.0e-4", 120),
    ("Step [120/5000], Loss: 2.3012", 120),
    ("[2026-08-03 22:34:34,112] [INFO] [logging.py:96:log_dist] [Rank 0] step=120, skipped=0", 120),
    ("iter 120: loss 2.3421, time 103.22ms, mfu 41.2%", 120),
    (" [2026-08-03 22:34:34] iteration      120/    5000 | consumed samples: 61440 | elapsed time per iteration (ms): 512.3 |", 120),
    ("global_step: 120, epoch: 3", 120),
    ("Global step 120 loss 2.1", 120),
    ("{'loss': 2.31, 'step': 120, 'epoch': 0.12}", 120),
    ('{"ts": 1795955000.123, "step": 120, "loss": 2.31}', 120),
    ('{"train/global_step": 120, "train/loss": 2.3}', 120),
    ('{"epoch": 1, "num_updates": "120", "loss": "5.1"}', 120),
    ("2026-08-03 22:34:34 | INFO | train_inner | epoch 001:    118 / 5000 loss=9.1, num_updates=120, lr=3e-05", 120),
    ("  2%|2         | 120/5000 [00:12<08:01, 10.13it/s]", 120),
    ("100%|##########| 5000/5000 [1:08:01<00:00,  1.22s/it]", 5000),
    ("120it [00:12, 9.80it/s]", 120),
    ("Epoch 3:  24%|##4       | 120/500 [00:12<00:38,  9.91it/s, v_num=0, train_loss=0.43]", 1620),
    ("Epoch 3/9 ------ 120/500 0:00:12 • 0:00:38 9.91it/s v_num: 0.000", 1620),
    ("Epoch: [3][ 120/5004]\tTime  0.317 ( 0.402)\tData  0.001 ( 0.032)", 15132),
    ("Train: 3 [ 120/1251 ( 10%)]  Loss: 6.91 (6.93)", 3873),
    ("08/03 22:34:34 - mmengine - INFO - Iter(train) [   120/160000]  lr: 1.0e-02  eta: 12:01:11", 120),
    ("9: 2026-06-17 15:13:31 train step 120 loss 0.81", 120),
    ("step:  120  loss:  3.1482  memory: 41.27GiB(52.1%)  tps: 3,112", 120),
    ("training_step 120 done", 120),
    ("saved checkpoint at step 120", 120),
]

NOT_NAMED = [
    "",
    "epoch 3",
    "Epoch 3/10",
    "epoch: 3, lr: 0.001",
    "listening on localhost:29500",
    "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500",
    "2026-08-03 22:34:34,112 INFO started 8 processes",
    "read 1048576/4194304 bytes",
    "loss 0.812 at 12:30:11",
    "heartbeat 4512",
    "still alive, step 999",
    "still alive (iter 120)",
    "rank=0 phase=training step=183 hb",
    "keepalive: step 12",
    "max_steps=5000",
    "warmup_steps: 2000",
    "num_steps = 5000",
    "will train until step 5000",
    "total step 5000",
    "saving every step 1000",
    "resuming from step 800",
    "resumed at step 800",
    "step size 120",
    "step_size=120",
    "step 0.5",
    "step took 120 ms",
    "step: 120 ms",
    "step=120ms",
    "step 12:30:11",
    "step 2026-06-17",
    "step 1,200",
    "step 50%",
    "saving checkpoint /ckpt/step-500/model.pt",
    "saving checkpoint to /ckpt/global_step500",
    "restoring /ckpt/epoch=3-step=500.ckpt",
    "restoring /ckpt/epoch=3-global_step=500.ckpt",
    "footstep 12",
    "micro step 3",
    "eval step 12",
    "val_step: 12",
    "Downloading shards: 100%|#####| 3/3 [00:12<00:00, 4.1s/it]",
    "Loading checkpoint shards:  33%|###   | 1/3 [00:01<00:02]",
    "Validation DataLoader 0: 100%|######| 5/5 [00:01<00:00,  4.31it/s]",
    "Sanity Checking DataLoader 0:  50%|#####   | 1/2 [00:00<00:00]",
    "Map (num_proc=8):  12%|#   | 1200/10000 [00:12<01:28, 100.1 examples/s]",
    "model.bin: 1024/2048 [00:01<00:01, 10.2kB/s]",
    "Train Epoch: 3 [1280/60000 (2%)]\tLoss: 0.412",
    "Test: [ 10/98]\tTime  0.317",
]


@pytest.mark.parametrize(("line", "step"), NAMED)
def test_a_line_that_advances_a_counter_names_its_step(line: str, step: int) -> None:
    mark = find_step(line)
    assert mark is not None
    assert mark.step == step


@pytest.mark.parametrize("line", NOT_NAMED)
def test_other_numbers_are_no_step(line: str) -> None:
    assert find_step(line) is None


def test_a_counter_over_the_whole_run_is_believed_before_a_progress_bar() -> None:
    bar, step = find_step("80%|####  | 4000/5000 [00:12<08:01, 10.1it/s]"), find_step("step 12")
    assert bar is not None
    assert step is not None
    assert further(bar, step) == further(step, bar) == step


def test_of_two_counters_in_a_line_the_global_one_is_taken() -> None:
    assert find_step("step 3 (global_step 120)") == StepMark(120, Strength.GLOBAL_STEP)


def test_the_table_is_ordered_from_the_strongest_down() -> None:
    strengths = [pattern.strength for pattern in PATTERNS]
    assert strengths == sorted(strengths, reverse=True)


@pytest.mark.timeout(10)
def test_a_hostile_line_costs_no_more_than_its_length() -> None:
    for piece in (
        "epoch 1 ",
        "step ",
        "1 ",
        "[1/",
        "epoch 3: 1/2 ",
        "train [",
        "iteration " + " " * 50,
        "step:" + " " * 30,
        "validating to ",
    ):
        find_step((piece * 2000)[:2000])


marks = st.none() | st.builds(StepMark, st.integers(0, 10**6), st.sampled_from(Strength))


@given(marks, marks, marks)
def test_the_order_of_lines_does_not_change_the_mark(a: StepMark | None, b: StepMark | None, c: StepMark | None) -> None:
    assert further(further(a, b), c) == further(a, further(b, c)) == further(further(c, b), a)


@given(st.text(max_size=300))
def test_no_text_breaks_the_search(text: str) -> None:
    mark = find_step(text)
    assert mark is None or mark.step >= 0
