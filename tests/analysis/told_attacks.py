"""Stacks as people paste them in many tools' words, of 2 to 512 ranks, and every answer that the text allows."""

import json
import re

import told_scenes as scenes
from told_scenes import C10D, MAIN, STEP

import stack_texts
from stack_texts import F, P

LOADER = "data_loader_worker_stuck"
UNDETERMINED = ("undetermined", "unknown", None)
STILL = "-- no step for 25 min --\n"
SLOW_COPY = scenes.ranks(4, 2, scenes.DATA)


def waits_for_data(*ranks):
    return [("hang", LOADER, ranks)]


def unknown(*ranks):
    return [("hang", "unknown", ranks or None)]


def dump(pid, frames, state="idle"):
    """One process in the words of py-spy, without a header of ours."""
    lines = "".join(f"    {frame.name} ({frame.file}:{frame.line})\n" for frame in frames)
    return f'Process {pid}: python3 train.py\nPython v3.8.13 (/usr/bin/python3.8)\n\nThread {pid} ({state}): "MainThread"\n{lines}\n'


def headed(head):
    """Four ranks of which number 2 waits for its data, each below a header of this form."""
    return "".join(
        head.format(rank=each.rank, pid=each.pid, node=each.rank // 2, local=each.rank % 2) + dump(each.pid, each.frames)
        for each in SLOW_COPY
    )


def each_line(prefix, tool=stack_texts.faulthandler):
    """The same, each line behind a prefix."""
    texts = ((each.rank, tool([each]).splitlines()[1:]) for each in SLOW_COPY)
    return "".join(f"{prefix.format(rank=rank)}{line}\n" for rank, lines in texts for line in lines)


def two_looks(first, second, between=""):
    return f"# look 1\n{stack_texts.pyspy(first)}{between}# look 2\n{stack_texts.pyspy(second)}"


OLD_BACKWARD = (F("backward", "torch/autograd/__init__.py", 197), F("backward", "torch/_tensor.py", 487), *STEP)
GATHERS = (
    F("all_gather_coalesced", "deepspeed/runtime/zero/partition_parameters.py", 1254),
    F("wrapped_fn", "deepspeed/utils/nvtx.py", 18),
    F("fetch_sub_module", "deepspeed/runtime/zero/partitioned_param_coordinator.py", 386),
    F("_fn", "torch/_dynamo/eval_frame.py", 600),
    F("_call_impl", "torch/nn/modules/module.py", 1592),
    F("forward", "model.py", 9),
    *STEP,
)
UPLOADS = (
    F("read", "ssl.py", 1099),
    F("readinto", "socket.py", 706),
    F("getresponse", "http/client.py", 1374),
    F("urlopen", "urllib3/connectionpool.py", 449),
    F("put_object", "botocore/client.py", 530),
    F("upload_metrics", "telemetry.py", 30),
    *STEP,
)
MEGATRON_SAVES = (
    F("write", "torch/serialization.py", 300),
    F("save", "torch/serialization.py", 850),
    F("save_checkpoint", "megatron/training/checkpointing.py", 500),
    MAIN,
)
MEGATRON_WAITS = (F("barrier", C10D, 3696), F("save_checkpoint", "megatron/training/checkpointing.py", 560), MAIN)
GRAIN = (F("wait", "threading.py", 302), F("get", "queue.py", 170), F("__next__", "grain/_src/python/data_loader.py", 410), *STEP)
STARTS = (F("_store_based_barrier", C10D, 800), F("init_process_group", C10D, 1500), F("main", "train.py", 20), MAIN)
IMPORTS = (
    F("_path_stat", "<frozen importlib._bootstrap_external>", 147),
    F("<module>", "transformers/__init__.py", 26),
    F("<module>", "train.py", 3),
)
AGENT = (
    F("sleep", "time"),
    F("_invoke_run", "torch/distributed/elastic/agent/server/api.py", 870),
    F("launch_agent", "torch/distributed/launcher/api.py", 260),
    F("main", "torch/distributed/run.py", 800),
)
FORWARD = (F("gelu", "torch/nn/functional.py", 99), F("forward", "model.py", 41), *STEP)
UPDATES = (F("step", "torch/optim/adamw.py", 243), *STEP)
LOADS = (
    F("read", "safetensors/torch.py", 300),
    F("from_pretrained", "transformers/modeling_utils.py", 3900),
    F("main", "train.py", 20),
    MAIN,
)
DEBUGS = (F("readline", "<stdin>", 1), F("_cmdloop", "pdb.py", 352), F("trace_dispatch", "bdb.py", 90), *STEP)
EXCHANGES = (F("all_to_all_single", C10D, 4000), F("dispatch", "moe.py", 77), *STEP)
LOCK = (F("acquire", "threading.py", 300), F("take", "prefetch.py", 60), *STEP)
RING = (F("recv", C10D, 1640), F("get_from_next", "ring.py", 21), *STEP)
RAISED = 'Traceback (most recent call last):\n  File "/home/u/job/train.py", line 10, in main\n    loss = step(b)\n{error}\n'
SPAWNS = (F("select", "selectors.py", 415), F("join", "torch/multiprocessing/spawn.py", 140), F("main", "train.py", 88), MAIN)
WAITS_FOR_BUILD = (F("wait", "torch/utils/file_baton.py", 50), F("load", "torch/utils/cpp_extension.py", 1300), MAIN)
BUILDS = (F("communicate", "subprocess.py", 1209), F("_run_ninja_build", "torch/utils/cpp_extension.py", 2100), MAIN)
LOGS = (F("write", "logging/__init__.py", 1100), F("info", "logging/__init__.py", 1489), F("log_step", "train.py", 60), *STEP)
WRAPS = (
    F("_verify_param_shape_across_processes", "torch/distributed/utils.py", 270),
    F("__init__", "torch/nn/parallel/distributed.py", 800),
    MAIN,
)
STOPS_EARLY = (F("all_reduce", C10D, 2806), F("early_stop", "callbacks.py", 35), F("main", "train.py", 80), MAIN)
SPINS = (F("__iter__", "sampler.py", 33), *STEP)
ALL_MOVE = [P(rank, 60 + rank, scenes.ALL_REDUCE, idle=False) for rank in range(4)]
LOCALS = re.sub(r"(    train_step .*)", r"\1\n        Arguments:\n            rank: 0\n            step: 400", stack_texts.pyspy(SLOW_COPY))
PYSTACK_LOCALS = re.sub(r"(.*in train_step)", r"\1\n      Locals:\n        rank: 0", stack_texts.pystack(SLOW_COPY))
AS_JSON = {
    f"rank{each.rank}": {"pid": each.pid, "stack": json.loads(stack_texts.pyspy_json([each]).split("\n", 1)[1])} for each in SLOW_COPY
}
LOADERS = [
    each
    for rank in range(4)
    for each in (P(rank, 4100 + rank, scenes.DATA), scenes.child(rank, (F("read_shard", "data.py", 44), *scenes.WORKER)))
]
GIL = (
    '\n## rank=3 pid=4103\nThread 1 (Thread 0x7f2a (LWP 4103) "python"):\n#0  0x00007f in pthread_cond_timedwait () from libc.so.6\n'
    '#1  0x00007f in take_gil () from libpython3.11.so\n\nThread 2 (Thread 0x7f2b (LWP 4190) "worker"):\n'
    "#0  0x00007f in fasttok_encode () from fasttok.so\n"
)

ATTACKS = {
    # What is stuck, in other programs' words.
    "torch 1.13": (stack_texts.pyspy(scenes.ranks(4, 2, scenes.DATA, OLD_BACKWARD)), waits_for_data(2)),
    "deepspeed, and one rank that uploads": (stack_texts.pyspy(scenes.ranks(8, 5, UPLOADS, GATHERS)), unknown(5)),
    "megatron of 512 saves": (
        stack_texts.pyspy(scenes.ranks(512, 300, MEGATRON_SAVES, MEGATRON_WAITS)),
        [("benign_wait", "checkpoint_io_slow", (300,))],
    ),
    "fsdp stands in two looks": (
        two_looks(*[scenes.ranks(16, 0, scenes.FORWARD, scenes.FORWARD)] * 2),
        [("hang", "collective_started_everywhere", None)],
    ),
    "a loader of another library": (stack_texts.pyspy(scenes.ranks(4, 2, GRAIN)), [*waits_for_data(2), *unknown(2)]),
    "one loads a model": (stack_texts.pyspy(scenes.ranks(4, 2, LOADS, scenes.BARRIER)), [("benign_wait", "model_load", (2,))]),
    "all load a model": (stack_texts.pyspy(scenes.ranks(4, 2, LOADS, LOADS)), [("benign_wait", "model_load", None)]),
    "one imports slowly": (
        stack_texts.pyspy(scenes.ranks(8, 3, IMPORTS, STARTS)),
        [UNDETERMINED, *unknown(3), ("benign_wait", "none", (3,)), ("hang", "filesystem_stall", (3,))],
    ),
    "two of eight never came": (
        stack_texts.pyspy([each for each in scenes.ranks(8, 0, STARTS, STARTS) if each.rank not in {2, 5}])
        + "-- WORLD_SIZE=8; no step for 9 min --\n",
        [UNDETERMINED, *unknown(), ("hang", "rendezvous_failed", None)],
    ),
    "a debugger was left in": (stack_texts.pyspy(scenes.ranks(4, 3, DEBUGS)), unknown(3)),
    "a lock of the user's own": (stack_texts.pyspy(scenes.ranks(6, 4, LOCK)), unknown(4)),
    "a chain of waits": (
        stack_texts.pyspy([P(r, 40 + r, {1: RING, 2: scenes.DATA}.get(r, scenes.ALL_REDUCE)) for r in range(6)]),
        waits_for_data(2),
    ),
    "two are stuck": (
        stack_texts.pyspy([P(r, 40 + r, scenes.DATA if r in {1, 3} else scenes.ALL_REDUCE) for r in range(6)]),
        waits_for_data(1, 3),
    ),
    "one evaluates and one is stuck": (
        stack_texts.pyspy([P(r, 40 + r, {1: scenes.EVALUATES, 3: scenes.DATA}.get(r, scenes.BARRIER)) for r in range(6)]),
        [("benign_wait", "rank0_eval", (1, 3)), ("benign_wait", "rank0_eval", (1,)), UNDETERMINED],
    ),
    "experts in halves": (
        stack_texts.pyspy([P(r, 80 + r, EXCHANGES if r % 2 else scenes.ALL_REDUCE) for r in range(8)]),
        [("hang", "collective_mismatch_op", None), UNDETERMINED],
    ),
    "the same mount under all loaders": (
        stack_texts.pyspy(LOADERS) + "".join(f"/proc/{9000 + 10 * r}/stat: D  wchan: nfs_wait_bit_killable\n" for r in range(4)),
        [("hang", "filesystem_stall", None)],
    ),
    "out of memory on one": (
        stack_texts.pyspy([each for each in scenes.ranks(8, 6, STEP) if each.rank != 6])
        + "## rank=6 pid=4106\n"
        + RAISED.format(error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        [("hang", "gpu_oom", (6,))],
    ),
    "a zombie": (
        stack_texts.pyspy([each for each in scenes.ranks(4, 2, STEP) if each.rank != 2])
        + "## rank=2 node=n1 pid=4102\n/proc/4102/status: State:\tZ (zombie)\n"
        + STILL,
        unknown(2),
    ),
    "a debugger holds one": (
        stack_texts.pyspy([each for each in scenes.ranks(4, 1, STEP) if each.rank != 1]) + "## rank=1 pid=4101\nState:\tt (tracing stop)\n",
        [("benign_wait", "none", (1,)), UNDETERMINED],
    ),
    "the interpreter's lock is kept in C": (stack_texts.pyspy(scenes.ranks(3, 0, scenes.ALL_REDUCE)) + GIL, [("hang", "gil_held", (3,))]),
    "the same line in two looks": (
        two_looks(*[[P(r, 60 + r, SPINS if r == 2 else scenes.ALL_REDUCE, idle=r != 2) for r in range(4)]] * 2),
        unknown(2),
    ),
    "half of the ranks may not be read": (
        stack_texts.pyspy([P(r, 40 + r, scenes.ALL_REDUCE) for r in range(4)])
        + "".join(f"## rank={r} pid={40 + r}\nError: Permission denied\n" for r in range(4, 8)),
        [UNDETERMINED, *unknown()],
    ),
    "one builds an extension": (
        stack_texts.pyspy(scenes.ranks(4, 2, BUILDS, WAITS_FOR_BUILD)),
        [("benign_wait", "compile_or_jit", (2,))],
    ),
    "a lock file that nobody holds": (stack_texts.pyspy(scenes.ranks(4, 2, WAITS_FOR_BUILD, WAITS_FOR_BUILD)) + STILL, [*unknown()]),
    "one cannot write its log": (stack_texts.pyspy(scenes.ranks(4, 2, LOGS)) + "-- 12 min identical --\n", unknown(2)),
    "one loads while the others wrap": (stack_texts.pyspy(scenes.ranks(4, 3, LOADS, WRAPS)), [("benign_wait", "model_load", (3,))]),
    "one stops early": (stack_texts.pyspy(scenes.ranks(8, 6, STOPS_EARLY)), [("hang", "rank_conditional_collective", (6,))]),
    # What every running job looks like at some moment.
    "all compute": (stack_texts.pyspy([P(r, 60 + r, FORWARD, idle=False) for r in range(4)]), [UNDETERMINED]),
    "all compute, by faulthandler": (stack_texts.faulthandler([P(r, 60 + r, FORWARD) for r in range(4)]), [UNDETERMINED]),
    "one is a step ahead": (stack_texts.pyspy(scenes.ranks(4, 1, UPDATES, idle=False)), [UNDETERMINED]),
    "one is a step ahead, by faulthandler": (stack_texts.faulthandler(scenes.ranks(4, 1, UPDATES)), [UNDETERMINED]),
    "some in backward": (
        stack_texts.pyspy([P(r, 60 + r, scenes.BACKWARD if r % 2 else scenes.ALL_REDUCE, idle=False) for r in range(4)]),
        [UNDETERMINED],
    ),
    "all wait for a batch": (stack_texts.pyspy(scenes.ranks(4, 0, scenes.DATA, scenes.DATA)), [UNDETERMINED]),
    "all wait for a batch for long": (stack_texts.pyspy(scenes.ranks(4, 0, scenes.DATA, scenes.DATA)) + STILL, [("hang", LOADER, None)]),
    "steps between looks that are alike": (
        "step 100 | 1.0 s/it\n" + two_looks(ALL_MOVE, ALL_MOVE, "step 130 | 1.0 s/it\n") + "step 161 | 1.0 s/it\n",
        [("healthy", "none", None)],
    ),
    # Who is who.
    "the launcher is no rank": (dump(10, AGENT) + "".join(dump(11 + r, scenes.ALL_REDUCE, "active") for r in range(3)), [UNDETERMINED]),
    "the launcher is not awaited": (
        dump(10, AGENT) + dump(11, scenes.ALL_REDUCE) + dump(12, scenes.DATA) + dump(13, scenes.ALL_REDUCE),
        [("hang", LOADER, None)],
    ),
    "the parent of spawned ranks is no rank": (
        dump(9, SPAWNS) + dump(10, scenes.ALL_REDUCE) + dump(11, scenes.DATA) + dump(12, scenes.ALL_REDUCE),
        [("hang", LOADER, None)],
    ),
    "local ranks of two nodes": (
        "".join(
            f"## node={n} local_rank={r}\n" + dump(100 + 10 * at + r, scenes.DATA if (at, r) == (1, 0) else scenes.ALL_REDUCE)
            for at, n in enumerate("ab")
            for r in (0, 1)
        ),
        [("hang", LOADER, None), UNDETERMINED],
    ),
    "a prefix that counts within a node": (each_line("[default{rank}]:"), [("hang", LOADER, None)]),
    "srun's prefix": (each_line("{rank}: "), waits_for_data(2)),
    "mpirun's prefix": (each_line("[1,{rank}]<stderr>:"), waits_for_data(2)),
    "headers in words": (headed("Rank {rank} (gpu-node-{node}):\n"), waits_for_data(2)),
    "headers without a blank": (headed("rank{rank}:\n"), waits_for_data(2)),
    "headers in a frame": (headed("=== host=gn0{node} gpu={local} rank={rank} ===\n"), waits_for_data(2)),
    "headers of both ranks": (headed("--- global_rank: {rank} local_rank: {local} pid: {pid}\n"), waits_for_data(2)),
    "headers in bold": (headed("**rank {rank}:**\n\n"), waits_for_data(2)),
    "headers of a document": (headed("### Rank {rank}\n```\n"), waits_for_data(2)),
    "one document of JSON": (json.dumps(AS_JSON, indent=1), waits_for_data(2)),
    # What happened to the text on its way.
    "line ends of Windows": (stack_texts.pyspy(SLOW_COPY).replace("\n", "\r\n"), waits_for_data(2)),
    "colours": (re.sub(r"(?m)^    (\w+) \(", "    \x1b[32m\\1\x1b[0m (", stack_texts.pyspy(SLOW_COPY)), waits_for_data(2)),
    "a byte order mark": ("\ufeff" + stack_texts.pyspy(SLOW_COPY), waits_for_data(2)),
    "a stamp on each line": (re.sub(r"(?m)^", "2026-03-01T10:00:00.123Z ", stack_texts.pyspy(SLOW_COPY)), waits_for_data(2)),
    "no margins": (re.sub(r"(?m)^ +", "", stack_texts.pyspy(SLOW_COPY)), waits_for_data(2)),
    "a fence around it": ("Four GPUs:\n```\n" + stack_texts.pyspy(SLOW_COPY) + "```\nAny ideas?\n", waits_for_data(2)),
    "local variables of py-spy": (LOCALS, waits_for_data(2)),
    "local variables of pystack": (PYSTACK_LOCALS, waits_for_data(2)),
    "one rank is looked at again": (stack_texts.pyspy(SLOW_COPY) + "# 90 s later\n" + stack_texts.pyspy([SLOW_COPY[2]]), waits_for_data(2)),
}
