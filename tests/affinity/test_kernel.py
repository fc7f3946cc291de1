"""Affinity and memory policy as the kernel has them, and who set them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankpatrol.affinity import kernel
from rankpatrol.affinity.binder import bound_by, unless_bound
from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.affinity.plan import BIND, LEFT, NOTHING, REFUSED, RankPlan

ALL, HALF = parse_cpus("0-7"), parse_cpus("0-3")
BIND_SELF = """
import json, os, re
from rankpatrol.affinity import kernel
said = kernel.bind({cpu}, "preferred", 0)
os.execv({python!r}, [{python!r}, "-c", '''
import json, os
from rankpatrol.affinity import kernel
maps = open("/proc/self/numa_maps").read() if os.path.exists("/proc/self/numa_maps") else "prefer:0"
print(json.dumps([sorted(os.sched_getaffinity(0)), kernel.memory_policy(), " prefer:0" in maps or "prefer:0" in maps]))
'''])
"""


def test_a_binding_is_there_after_exec() -> None:
    last = max(os.sched_getaffinity(0))
    code = BIND_SELF.replace("{cpu}", f"{{{last}}}").replace("{python!r}", repr(sys.executable))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=15, check=True, text=True)
    assert json.loads(done.stdout) == [[last], kernel.MPOL_PREFERRED, True]


def test_cpus_that_are_not_there_are_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        kernel.bind(frozenset([4095]), "none", None)


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/job/step\n", "sys/fs/cgroup/job/step/cpuset.cpus.effective"),
        ("0::/job/step\n", "sys/fs/cgroup/job/cpuset.cpus.effective"),
        ("0::/\n", "sys/fs/cgroup/cpuset.cpus.effective"),
        ("3:memory:/x\n4:cpuset,cpu:/job\n0::/\n", "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus"),
    ],
)
def test_the_cpuset_is_found_in_both_kinds_of_cgroups(tmp_path: Path, cgroup: str, file: str) -> None:
    for name, text in (("proc/self/cgroup", cgroup), (file, "0-3\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert kernel.cpuset(str(tmp_path)) == HALF


def test_without_cgroups_no_cpuset_is_claimed(tmp_path: Path) -> None:
    assert kernel.cpuset(str(tmp_path)) == frozenset()


def held(cpus: frozenset[int], policy: int | None = 0) -> kernel.Held:
    return kernel.Held(cpus, frozenset([0, 1]), policy)


def test_what_a_rank_shares_with_its_parent_was_meant_for_the_whole_job() -> None:
    assert bound_by({}, held(ALL), ALL, ALL) is None
    assert bound_by({}, held(HALF), HALF, ALL) is None  # taskset before the launcher


def test_the_cpuset_itself_is_no_binding() -> None:
    """slurmstepd stands outside the task's cgroup."""
    assert bound_by({}, held(HALF), ALL, HALF) is None


def test_an_affinity_of_the_ranks_own_was_set_by_somebody() -> None:
    assert bound_by({}, held(HALF), ALL, ALL) == "its launcher has bound it already, to CPUs 0-3"
    assert "mpirun" in (bound_by({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, held(HALF), ALL, ALL) or "")
    assert "srun" in (bound_by({"SLURM_CPU_BIND_TYPE": "mask_cpu:"}, held(HALF), ALL, frozenset()) or "")


def test_a_memory_policy_is_a_binding_and_one_that_cannot_be_asked_is_none() -> None:
    assert bound_by({}, held(ALL, kernel.MPOL_BIND), ALL, ALL) == "a memory policy is set already"
    assert bound_by({}, held(ALL, None), ALL, ALL) is None


def test_whoever_came_first_has_the_last_word_but_a_finding_stays_one() -> None:
    bind, refused, nothing = (RankPlan(0, decision, decision, "why") for decision in (BIND, REFUSED, NOTHING))
    assert unless_bound(bind, "srun").decision == LEFT
    assert unless_bound(bind, None) == bind
    assert unless_bound(refused, "srun") == refused._replace(notes=("srun",))
    assert unless_bound(nothing, "srun") == nothing
