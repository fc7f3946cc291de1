"""Kinds of listings that once misled: a job that runs, another pid namespace, a small but right set of CPUs, counts in one line."""

import pytest

from rankpatrol.analysis.told.listings import diagnose_listing

PS = "    PID    PPID STAT     ELAPSED USER     CMD\n"
TREE = PS + (
    "   3310       1 Ssl     02:40:02 noor     python -m torch.distributed.run --nproc_per_node=2 train.py\n"
    "   3321    3310 {state}l      02:39:55 noor     /opt/env/bin/python -u train.py\n"
    "   3322    3310 {state}l      02:39:55 noor     /opt/env/bin/python -u train.py\n"
    "fd 3321: /dev/nvidiactl /dev/nvidia0\nfd 3322: /dev/nvidiactl /dev/nvidia1\nenv 3310: SLURM_JOB_ID=5150\n"
)


def answer(text):
    found = diagnose_listing(text)
    return (found.verdict, found.cause) if found else None


@pytest.mark.parametrize(
    ("squeue", "expected"),
    [
        ("$ squeue -h -o '%A %T %M'\n5150 RUNNING 2:40:20\n", ("not_orphan", "none")),
        (
            "$ squeue\n JOBID PARTITION NAME USER ST TIME NODES\n  5150 gpu lm noor R 2:40:20 1\n  5160 gpu x ana PD 0:00 1\n",
            ("not_orphan", "none"),
        ),
        ("[noor@gn3 ~]$ squeue --me\n  5150 gpu lm noor CG 2:40:20 1\n$ date\n", ("not_orphan", "none")),
        ("$ squeue -h -o '%A %T'\n5160 RUNNING\n$ date\n", ("orphan", "orphan_worker")),
        ("$ squeue -h -u noor -o '%A %T'\n$ date\n", ("orphan", "orphan_worker")),
        ("$ squeue -h -u noor -o '%A %T'\n5160 RUNNING\n$ date\n", ("orphan", "orphan_worker")),
        ("$ squeue -h -u ana -o '%A %T'\n5160 RUNNING\n$ date\n", ("undetermined", "unknown")),
        ("$ squeue -h -p debug -o '%A %T'\n5160 RUNNING\n$ date\n", ("undetermined", "unknown")),
        ("$ squeue -h -p debug\n$ date\n", ("undetermined", "unknown")),
        ("$ squeue -h -t PD\n$ date\n", ("undetermined", "unknown")),
        ("$ squeue -h -j 5160 -o '%A:%T'\n5160:RUNNING\n$ date\n", ("undetermined", "unknown")),
        ("$ squeue -j 5150 -h -o '%A:%T'\n5150:RUNNING\n$ date\n", ("not_orphan", "none")),
        ("$ squeue -j 5150\nslurm_load_jobs error: Invalid job id specified\n$ date\n", ("orphan", "orphan_worker")),
        ("$ squeue --me\n JOBID PARTITION NAME USER ST\n$ date\n", ("undetermined", "unknown")),
        ("$ squeue -h -o '%A %T'\n$ date\n", ("orphan", "orphan_worker")),
        ("$ squeue -h -o '%A %T'\n", ("undetermined", "unknown")),
        ("$ squeue -h -o '%A %T'\nslurm_load_jobs error: Unable to contact slurm controller\n", ("undetermined", "unknown")),
        ("$ squeue -h\n5149_7 gpu sweep noor R 1:00 1\n$ date\n", ("undetermined", "unknown")),
    ],
)
def test_the_scheduler_answers_below_the_command(squeue, expected):
    assert answer(TREE.format(state="S") + squeue) == expected


NAMED = "$ nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv\npid, used_gpu_memory [MiB], process_name\n"


@pytest.mark.parametrize(
    "command",
    [
        "/usr/sbin/cron -f",
        "/lib/systemd/systemd-logind",
        "/usr/bin/dbus-daemon --system",
        "sshd: /usr/sbin/sshd -D",
        "/usr/sbin/rsyslogd -n",
    ],
)
def test_a_pid_of_the_driver_that_is_a_system_program_here_is_another_namespaces(command):
    text = NAMED + f"731, 20112 MiB, [Not Found]\n$ ps -o pid,ppid,stat,cmd -p 731\n  PID  PPID STAT CMD\n  731     1 Ss   {command}\n"
    assert answer(text) == ("not_orphan", "pid_namespace_alias")


def test_a_name_the_driver_cannot_find_and_no_open_device_is_another_namespaces_process():
    rows = "  PID  PPID STAT CMD\n  731     1 Sl   python -u serve.py\n  732     1 Sl   python -u serve.py\n"
    text = NAMED + "731, 20112 MiB, [Not Found]\n732, 20112 MiB, [Not Found]\n$ ps -p 731,732\n" + rows
    counted = "$ ls -l /proc/731/fd /proc/732/fd | grep nvidia | wc -l\n{count}\n"
    assert answer(text + counted.format(count=0)) == ("not_orphan", "pid_namespace_alias")
    assert answer(text + counted.format(count=14)) != ("not_orphan", "pid_namespace_alias")


MATRIX = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV12\t0-15,32-47\t0\t\tN/A\nGPU1\tNV12\t X \t0-15,32-47\t0\t\tN/A\n"
)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("/sys/bus/pci/devices/0000:41:00.0/local_cpulist: 0-15,32-47\nCpus_allowed_list:\t4-7\n", ("ok", "none")),
        ("NUMA node0 CPU(s): 0-15,32-47\nCpus_allowed_list:\t36-39\n", ("ok", "none")),
        ("pid 88's current affinity list: 2,3\nCpus_allowed_list:\t2-3\n", ("ok", "none")),
        (
            "Cpus_allowed_list:\t4-7\nOSError: [Errno 22] Invalid argument: os.sched_setaffinity(0, {0, 1, 2})\n",
            ("misbound", "affinity_outside_cpuset"),
        ),
        ("Cpus_allowed_list:\t16-31\n", ("misbound", "affinity_outside_cpuset")),
        ("--physcpubind=0-15\ncpuset.cpus.effective: 8-11\n", ("misbound", "affinity_outside_cpuset")),
    ],
)
def test_a_granted_set_may_be_a_part_of_the_near_one(more, expected):
    assert answer(MATRIX + more) == expected


QUERY = "$ nvidia-smi --query-gpu=index,utilization.gpu,utilization.memory,power.draw,clocks.sm --format=csv,noheader\n"
SPIN = "".join(f"{gpu}, 100 %, 0 %, {91 + gpu}.40 W, 1755 MHz\n" for gpu in range(3))
WORK = "".join(f"{gpu}, 98 %, 61 %, {611 + gpu}.40 W, 1755 MHz\n" for gpu in range(3))
RAS = "$ ncclras -v\nCommunicators... (0.00s)\nGroup     Comms     Nodes     Ranks\n"
FROZEN = "-- 240 s later: the same counts on every rank --\n"


def counts(*numbers, communicator="#0-0"):
    return f"{communicator}  " + " | ".join(f"rank {rank} AllReduce {each} Broadcast 12" for rank, each in enumerate(numbers)) + "\n"


@pytest.mark.parametrize(
    ("text", "expected", "ranks"),
    [
        (QUERY + SPIN + RAS + counts(90, 90, 90) + FROZEN, ("hang", "gpu_kernel_livelock"), None),
        (QUERY + WORK + RAS + counts(90, 90, 90), ("undetermined", "unknown"), None),
        (QUERY + WORK, ("healthy", "none"), None),
        (RAS + counts(90, 89, 90) + FROZEN, ("hang", "rank_missing_collective"), (1,)),
        (RAS + counts(90, 89, 90), ("undetermined", "unknown"), None),
        (RAS + counts(90, 90) + counts(31, 30, 31, communicator="#1-0") + FROZEN, ("hang", "rank_missing_collective"), None),
        (RAS + counts(90, 90) + counts(31, 31, communicator="#1-0") + FROZEN, ("hang", "collective_started_everywhere"), None),
    ],
)
def test_counts_of_several_ranks_may_share_a_line(text, expected, ranks):
    found = diagnose_listing(text)
    assert ((found.verdict, found.cause), found.culprit_ranks) == (expected, ranks)


@pytest.mark.parametrize(
    "line",
    [
        "Cpus_allowed:\t30",
        "Cpus_allowed:\t00000000,00000030",
        "taskset -p 30 17",
        "/proc/irq/24/smp_affinity: 30",
        "cpu_mask: 30",
        "affinity mask: 30",
        "num_cpus=30",
        "cpus: 30",
        "cores = 30",
        "--cpus=30",
        "SLURM_CPUS_ON_NODE=30",
        "SLURM_CPUS_PER_TASK=30",
        "Mems_allowed:\t30",
    ],
)
def test_bits_and_counts_are_no_numbers_of_cpus(line):
    found = diagnose_listing(f"{line}\npid 17's current affinity list: 0-1\nCpus_allowed_list:\t0-1\n")
    assert found is None or found.verdict != "misbound"


@pytest.mark.parametrize(
    "line",
    [
        "taskset -c 30 python train.py",
        "taskset -pc 30 17",
        "taskset --cpu-list 30 python",
        "bind rank 3 to cores 30",
        "cpu_affinity: 30-31",
        "cpus: 30-31",
        "core: 30",
    ],
)
def test_cpus_that_are_asked_for_by_number_are_still_read(line):
    assert answer(f"{line}\nCpus_allowed_list:\t0-1\n") == ("misbound", "affinity_outside_cpuset")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("00000000,00000003", ("ok", "none")), ("ff", ("ok", "none")), ("ff000000", ("misbound", "affinity_outside_cpuset"))],
)
def test_the_mask_of_cpus_near_a_device_is_read_as_bits(mask, expected):
    assert answer(f"local_cpus: {mask}\nCpus_allowed_list:\t0-1\n") == expected


def test_a_list_of_near_cpus_that_cannot_be_read_is_not_empty():
    assert answer("local_cpulist: 999999\nCpus_allowed_list:\t0-1\n") in {None, ("undetermined", "unknown")}


SMI = (
    "| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |\n"
    "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |\n"
    "| N/A   35C    P0              65W / 400W |  40000MiB / 81920MiB |    100%      Default |\n"
    "|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0B:00.0 Off |                    0 |\n"
    "| N/A   33C    P0              62W / 400W |  40000MiB / 81920MiB |      0%      Default |\n"
    "|    0   N/A  N/A   1234567      C   python                                    39990MiB |\n"
    "|    1   N/A  N/A   1234568      C   python                                    39990MiB |\n"
)


def test_a_list_that_was_not_given_is_not_spoken_of():
    found = diagnose_listing(SMI)
    assert found.verdict == "undetermined"
    assert "1 of 2 GPUs are busy at low power" in found.sentence
    assert "no list of processes was given" in found.sentence
    assert any("ps -eo" in advice for advice in found.suggested)
    assert (
        "is not in the list of processes" in diagnose_listing(SMI + PS + "      7       1 Ssl     02:40:02 noor     python x.py\n").sentence
    )
