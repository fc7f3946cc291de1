"""What listings of processes, GPUs, topologies and checkpoints allow to say."""

import json
from pathlib import Path

import pytest
import recorded_stacks
from hypothesis import given, settings
from hypothesis import strategies as st
from listing_texts import LISTINGS

import stack_texts
from rankpatrol.analysis.told.listings import diagnose_listing
from rankpatrol.analysis.told.stacks import diagnose_stacks

TOLD = Path(__file__).parents[1] / "data" / "told"
ANSWERS = json.loads((TOLD / "answers.json").read_text())


def answer(text):
    found = diagnose_listing(text)
    return found.verdict, found.cause


@pytest.mark.parametrize("case", ANSWERS)
def test_reports_of_others_are_answered_rightly_and_by_the_right_form(case):
    text = (TOLD / f"{case}.txt").read_text()
    listing, stacks = diagnose_listing(text), diagnose_stacks(text)
    found = stacks if ANSWERS[case]["kind"] == "stack" else listing
    assert (listing is None) is (found is stacks)
    assert (stacks is None) is (found is listing)
    named = found.awaited_ranks if found.verdict == "benign_wait" else found.culprit_ranks
    assert [found.verdict, found.cause, list(named) if named else None] in ANSWERS[case]["accept"]


@pytest.mark.parametrize("scenario", recorded_stacks.ANSWERS)
@pytest.mark.parametrize("tool", [stack_texts.pyspy, stack_texts.pyspy_json, stack_texts.faulthandler, stack_texts.pystack])
def test_recorded_ranks_are_answered_alike_in_every_tools_words(scenario, tool):
    found = diagnose_stacks(tool(recorded_stacks.processes(scenario)))
    # A tool that does not say whether a thread runs cannot tell a C call that sleeps from one that computes.
    silent = [("unknown", None)] if tool in {stack_texts.faulthandler, stack_texts.pystack} else []
    assert (found.cause, found.culprit_ranks) in [*recorded_stacks.ANSWERS[scenario], *silent]


PS = "  PID  PPID STAT TTY      USER CMD\n"


def ps(*rows):
    return PS + "\n".join(rows) + "\n"


HELD = "fd 501: /dev/nvidiactl /dev/nvidia0\nfd 502: /dev/nvidia0\n"
ORPHANS = ps("  501     1 S    ?        u1   python train.py", "  502     1 Sl   ?        u1   pt_data_worker")
GPU_TABLE = (
    "| NVIDIA-SMI 535.1 |\n| N/A   31C    P0    62W / 400W |  31022MiB / 81920MiB |      {busy}%      Default |\n"
    "|    0   N/A  N/A       501      C   python                                    31000MiB |\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ORPHANS + HELD, ("orphan", "orphan_worker")),
        (ORPHANS + HELD + "env 501: SLURM_JOB_ID=77\nenv 502: SLURM_JOB_ID=77\nsqueue -h -o %A: 91\n", ("orphan", "orphan_worker")),
        (ORPHANS + HELD + "env 501: SLURM_JOB_ID=77\nenv 502: SLURM_JOB_ID=77\nsqueue -h -o %A: 77\n", ("not_orphan", "none")),
        (ORPHANS + HELD + "squeue: error: Unable to contact slurm controller\n", ("undetermined", "unknown")),
        (ORPHANS.replace(" S    ?", " D    ?").replace(" Sl   ?", " D    ?") + HELD, ("orphan", "orphan_unkillable")),
        (ps("  501     1 S    pts/3    u1   python train.py") + HELD, ("undetermined", "unknown")),
        (
            ps("  400     1 Ss   ?        u1   tmux new -s t", "  501     1 S    ?        u1   python train.py") + HELD,
            ("undetermined", "unknown"),
        ),
        (
            ps("  400     1 S    ?        u1   torchrun train.py", "  501   400 S    ?        u1   python train.py")
            + "fd 501: /dev/nvidia0\n",
            None,
        ),
        (
            ps("  400   399 Ss   ?        u1   slurmstepd: [77.0]", "  501   400 Rl   ?        u1   python train.py")
            + "fd 501: /dev/nvidia0\n",
            ("not_orphan", "none"),
        ),
        (GPU_TABLE.format(busy=0) + "ps 501: PPID 1 STAT Sl CMD python train.py\n", ("orphan", "orphan_worker")),
        (GPU_TABLE.format(busy=98) + "ps 501: PPID 1 STAT Rl CMD python train.py\n", ("undetermined", "unknown")),
        (
            GPU_TABLE.format(busy=0) + "ps 501: PPID 77 STAT Sl CMD python serve.py\ncontainer: yes\nfd 501: socket:[1]\n",
            ("not_orphan", "pid_namespace_alias"),
        ),
        (
            "pid, used_gpu_memory [MiB]\n501, 20136 MiB\nps 501: No such process\n/proc/self/ns/pid: pid:[4026533000]\n",
            ("not_orphan", "pid_namespace_alias"),
        ),
        (ps("  900     1 Ss   ?        root nvidia-persistenced") + "fd 900: /dev/nvidia0\n", ("not_orphan", "none")),
    ],
)
def test_a_process_is_an_orphan_by_its_owners_end_never_by_ppid_alone(text, expected):
    found = diagnose_listing(text)
    assert expected is None or (found.verdict, found.cause) == expected


def test_a_launcher_that_lost_its_parent_is_no_proof_of_its_childrens_loss():
    text = (
        ps("  400     1 Rl   ?        u1   torchrun train.py", "  501   400 Rl   ?        u1   python train.py") + "fd 501: /dev/nvidia0\n"
    )
    assert answer(text) == ("undetermined", "unknown")


@pytest.mark.parametrize("name", [each["file"] for each in json.loads((TOLD / "topo" / "answers.json").read_text())])
def test_topologies_are_fine_or_refused(name):
    found = diagnose_listing((TOLD / "topo" / name).read_text())
    assert (found.verdict, found.cause) == (("undetermined", "unknown") if name == "empty_cells.txt" else ("ok", "none"))


MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-15\t0\nGPU1\tSYS\t X \t16-31\t1\n"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("Cpus_allowed_list:\t0-31\n", ("ok", "none")),
        ("Cpus_allowed_list:\t40-47\n", ("misbound", "affinity_outside_cpuset")),
        (
            "Cpus_allowed_list:\t0-7\nos.sched_setaffinity(0, {16, 17})\nOSError: [Errno 22] Invalid argument\n",
            ("misbound", "affinity_outside_cpuset"),
        ),
        ("pid 4711's current affinity list: 64-71\n", ("misbound", "affinity_outside_cpuset")),
        ("pid 4711's current affinity list: 0-7\n", ("ok", "none")),
        ("nvmlDeviceGetCpuAffinity(1): []\n", ("misbound", "affinity_empty")),
    ],
)
def test_a_binding_is_held_against_what_is_near_and_allowed(more, expected):
    assert answer(MATRIX + more) == expected


def ls(*files):
    return "".join(f"-rw-r--r-- 1 u u {size:>11} Mar  5 21:56 {name}\n" for name, size in files)


GB = 1 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ls(*((f"step_{step}/rank_{rank}.pt", GB) for step in (10, 20) for rank in range(4))), ("ok", "none")),
        (
            ls(*((f"step_{step}/rank_{rank}.pt", GB) for step in (10, 20) for rank in range(4) if (step, rank) != (20, 2))),
            ("incomplete", "ckpt_incomplete_set"),
        ),
        (
            ls(*((f"step_{step}/rank_{rank}.pt", 0 if (step, rank) == (20, 2) else GB) for step in (10, 20) for rank in range(4))),
            ("corrupt", "ckpt_truncated"),
        ),
        (ls(*((f"step_20/rank_{rank}.pt", GB // 3 if rank == 1 else GB) for rank in range(4))), ("corrupt", "ckpt_truncated")),
        (
            ls(("model-00001-of-00003.safetensors", 5 * GB), ("model-00002-of-00003.safetensors", 5 * GB)),
            ("incomplete", "ckpt_incomplete_set"),
        ),
        (ls(("model-00001-of-00002.safetensors", 5 * GB), ("model-00002-of-00002.safetensors", GB)), ("ok", "none")),
        (ls(("step_10/rank_0.pt", GB), ("step_10/rank_1.pt", GB)) + "latest: step_20\n", ("incomplete", "ckpt_incomplete_set")),
        (ls(("step_10/rank_0.pt", GB), ("step_10/rank_1.pt", GB)) + "latest: step_10\n", ("ok", "none")),
        (
            ls(("a.pt", GB), ("b.pt", GB))
            + "torch.load: RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
            ("corrupt", "ckpt_truncated"),
        ),
        ("torch.load('a.pt')\nEOFError: Ran out of input\n", ("corrupt", "ckpt_truncated")),
        ("1.0G\tstep_10/rank_0.pt\n1.0G\tstep_10/rank_1.pt\n", ("ok", "none")),
    ],
)
def test_checkpoints_are_whole_incomplete_or_corrupt(text, expected):
    assert answer(text) == expected


@pytest.mark.parametrize("name", LISTINGS)
def test_what_people_paste_is_read_in_its_own_words(name):
    text, expected = LISTINGS[name]
    assert answer(text) == expected


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_cut_short_names_no_other_fault(name):
    text, _ = LISTINGS[name]
    found = diagnose_listing(text[: len(text) // 2])
    assert found is None or found.culprit_ranks is None


def test_a_query_for_one_job_does_not_speak_of_others():
    text = ps("  501   400 S    ?        u1   python train.py") + "fd 501: /dev/nvidia0\nsqueue -j 8801: (empty)\n"
    assert answer(text) == ("undetermined", "unknown")


SPIN = "index, utilization.gpu [%], power.draw [W], power.limit [W]\n0, 100 %, 118.0 W, 700.0 W\n1, 100 %, 121.0 W, 700.0 W\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SPIN, ("undetermined", "unknown")),
        (
            SPIN + "ncclras: rank 0 AllReduce 10\nncclras: rank 1 AllReduce 10\n-- 60 s later: identical --\n",
            ("hang", "gpu_kernel_livelock"),
        ),
        (
            SPIN + "ncclras: rank 0 AllReduce 10\nncclras: rank 1 AllReduce 10\nncclras: rank 2 AllReduce 9\n-- 60 s later: identical --\n",
            ("hang", "rank_missing_collective"),
        ),
        (SPIN.replace("118.0", "655.0").replace("121.0", "661.0"), ("healthy", "none")),
        ("NVIDIA-SMI\nUnable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.\n", ("node_fault", "gpu_lost")),
        ("[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n", ("node_fault", "gpu_lost")),
        ("[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 94, Contained ECC error\n", ("node_fault", "gpu_ecc")),
    ],
)
def test_gpu_counters_say_what_counters_can(text, expected):
    assert answer(text) == expected


RAS = (
    "#0-0 (fa9) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
    "  {few} ranks have launched up to operation {low}\n  {many} ranks have launched up to operation {high}\n"
    "  Rank 12 -- GPU 4 managed by process 3 on node 10.0.0.2\n"
)


def test_a_spread_of_counts_at_one_moment_blames_nobody():
    found = diagnose_listing(RAS.format(few=30, low=640, many=1, high=641))
    assert (found.verdict, found.cause, found.culprit_ranks) == ("undetermined", "unknown", None)


@pytest.mark.parametrize("log", ["[rank0]: step 10 loss 2.1\n" * 5, "", "hello\nworld\n", "Epoch 3: loss=1.2 lr=0.1\n" * 30])
def test_a_log_is_no_listing(log):
    assert diagnose_listing(log) is None


PIECES = st.sampled_from(
    [
        PS,
        ORPHANS,
        HELD,
        GPU_TABLE,
        MATRIX,
        SPIN,
        RAS,
        "-rw-r--r-- 1 u u 0 Mar  5 21:56 a.pt\n",
        "latest -> x\n",
        "\t\x00\n",
        "PID PPID\n1 x\n",
        "GPU0\n",
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=40)), max_size=12))
@settings(deadline=None)
def test_no_listing_raises_nor_names_a_rank_without_counts(pieces):
    found = diagnose_listing("".join(pieces))
    assert found is None or found.culprit_ranks is None
