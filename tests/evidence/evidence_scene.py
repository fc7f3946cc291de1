"""Four real ranks, rank 3's loader processes blocked on a file, as the evidence room receives them."""

import json
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import IoCounters, LogSample, OpenFile, ProcessSample, RankSample, Snapshot, Stack, SystemCall
from rankpatrol.evidence.bundle import IncidentRef
from rankpatrol.evidence.capture import Findings

DATA = Path(__file__).parent.parent / "data" / "evidence"
BOOT = "0f5b2c1e-8d34-4a52-9f7a-3f1f2f6f6a01"
SHARD = "/mnt/datasets/imagenet-wds/train/shard-0042.tar"
ONSET_UNIX_S = 1_795_954_816.0
CALLS = {7: "poll", 202: "futex", 257: "openat"}


class StillClock:
    """Time that stands where a test puts it."""

    def __init__(self, unix_s: float = ONSET_UNIX_S + 184.0, mono_s: float = 90_184.0) -> None:
        self.now_unix_s, self.now_mono_s = unix_s, mono_s

    def unix_s(self) -> float:
        return self.now_unix_s

    def mono_s(self) -> float:
        return self.now_mono_s


def process_sample(raw: dict[str, Any], parent_pid: int, path: str | None = None) -> ProcessSample:
    call = raw["system_call"]
    return ProcessSample(
        id=ProcessId(BOOT, raw["pid"], 777_000 + raw["pid"]),
        parent_pid=parent_pid,
        name=raw["name"],
        command=("/opt/venv/bin/python3", "-u", "train.py", "--data", "/mnt/datasets", "--hub-token", "hf_aBcDeFgHiJkLmNoPqRsT"),
        state=raw["state"],
        tracer_pid=0,
        wait_channel=raw["wait_channel"],
        system_call=SystemCall(CALLS[call], (0,), path),
        cpu_ticks=raw["cpu_ticks"],
        main_thread_ticks=raw["cpu_ticks"],
        voluntary_switches=4021,
        involuntary_switches=17,
        minor_faults=51_000,
        major_faults=2,
        resident_bytes=412_000_000,
        io=IoCounters(9_100_000, 4_096, 0, 0),
        open_files=(OpenFile(5, SHARD, 1_048_576),) if path else (),
        thread_names=("python3", "pt_gloo_runloop"),
    )


def rank_sample(rank: int) -> RankSample:
    raw = json.loads((DATA / f"dl_fifo_rank{rank}.json").read_text())
    stuck = SHARD if rank == 3 else None
    return RankSample(
        rank=rank,
        local_rank=rank,
        node="gpu-node-17",
        shim_pid=23_600 + rank,
        pid=raw["pid"],
        process=process_sample(raw, 23_600 + rank),
        descendants=tuple(process_sample(child, raw["pid"], stuck) for child in raw["loaders"]),
        stack=msgspec.convert(raw["stack"], Stack),
        child_stacks={child["pid"]: msgspec.convert(child["stack"], Stack) for child in raw["loaders"]},
        log=LogSample(18_221, (f"[rank{rank}] step 811 loss 2.317 max_tokens=512", f"[rank{rank}] step 812 loss 2.309"), 812),
    )


def still_clock() -> StillClock:
    return StillClock()


def incident_ref() -> IncidentRef:
    return IncidentRef(job="8123", attempt=0, incident=1, onset_unix_s=ONSET_UNIX_S)


def stuck_snapshot() -> Snapshot:
    return Snapshot(
        job="8123",
        attempt=0,
        at_mono_s=90_180.0,
        at_unix_s=ONSET_UNIX_S + 180,
        world_size=4,
        ranks=tuple(rank_sample(rank) for rank in range(4)),
    )


def stuck_findings() -> Findings:
    snapshot = stuck_snapshot()
    loader = snapshot.ranks[3].descendants[0]
    return Findings(
        diagnosis=Diagnosis(
            verdict="hang",
            cause="data_loader_worker_stuck",
            culprit_ranks=(3,),
            victim_ranks=(0, 1, 2),
            certainty=Certainty.SUPPORTED,
            sentence="rank 3 waits for loader process 23701, which is blocked opening shard-0042.tar; ranks 0-2 wait for it",
            reasons_for=(
                "ranks 0, 1 and 2 stand in all_reduce 812 of the default group; rank 3 never entered it",
                "loader process 23701 has been in openat(/mnt/datasets/imagenet-wds/train/shard-0042.tar) in 9 of 9 samples over 180 s",
                "it read 0 bytes, took 0 page faults and used 0 CPU ticks in that time",
            ),
            reasons_against=("rank 3's other loader process waits in the same call, so the fault may be the file system's",),
            suggested=(
                "Look at the file system: `stat /mnt/datasets/imagenet-wds/train/shard-0042.tar` from another shell",
                "Set DataLoader(timeout=120), so that a stuck loader process raises instead of waiting for ever",
            ),
            process=loader.id,
            file=SHARD,
        ),
        snapshot=snapshot,
        snapshot_at_alert=msgspec.structs.replace(snapshot, at_mono_s=90_012.0, at_unix_s=ONSET_UNIX_S + 12),
        native={3: (DATA / "dl_fifo_rank3_native.txt").read_text()},
        host={
            "kernel_log": "[  120.004211] nfs: server store-3 not responding, still trying",
            "load": {"load_average": "4.02 3.90 2.11 3/912 24011", "cpus": 96},
            "gpus": Missing("no nvidia-smi on PATH"),
        },
        scheduler={"job": "8123", "state": "RUNNING", "comment": "submitted with WANDB_API_KEY=0123456789abcdef0123"},
        checkpoints=[{"path": "/mnt/ckpt/step-800", "step": 800, "verdict": "ok"}],
        touched=("ranks 0-3: py-spy non-blocking 3x", "rank 3: native stack once, 0.3 s"),
    )
