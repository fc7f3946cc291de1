"""What a light round knows of the logs."""

from clocks import FakeClock
from rankpatrol.agent import eyes as eyes_module
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.roster import Attempt
from rankpatrol.launch.rundir import RankPlace

OF_NOBODY = 2**22 + 1


def test_a_light_round_tells_the_step_that_stands_in_the_log_by_then(tmp_path, monkeypatch):
    """Told a round later, it would stand for progress when nobody moves any more."""
    monkeypatch.setattr(eyes_module, "_LIGHT_LOG_S", 10.0)  # a busy machine may take its time over a thread
    log = tmp_path / "attempts/0/rank0.log"
    log.parent.mkdir(parents=True)
    log.write_text("")
    ids = dict.fromkeys(("shim_pid", "shim_start_ticks", "pid", "start_ticks"), OF_NOBODY)
    restarts = dict.fromkeys(("torchrun_restarts", "scheduler_restarts"), 0)
    place = RankPlace(attempt=0, rank=0, local_rank=0, world_size=1, node="n", started_unix_s=0.0, **ids, **restarts)
    eyes = Eyes("job", tmp_path, FakeClock())
    eyes.begin(Attempt(number=0, places=(place,), exits={}, gone=frozenset()))
    for step in range(1, 6):
        with log.open("a") as lines:
            lines.write(f"step {step}/120 loss 0.1\n")
        eyes.light()
        assert eyes.best_step() == step
