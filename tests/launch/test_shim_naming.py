"""What a node is called."""

from rankpatrol.launch.shim.naming import named_by

SLURM = {"SLURM_JOB_ID": "77", "SLURMD_NODENAME": "gpu-n3"}
STEP = "5:freezer:/slurm_n3/uid_0/job_77/step_0/task_0\n0::/\n"


def test_in_a_step_of_slurms_the_node_bears_slurms_name() -> None:
    assert named_by(SLURM, "host-3.site", STEP) == "gpu-n3"
    assert named_by(SLURM, "host-3.site", "0::/\n") == "gpu-n3", "proctrack/linuxproc has no cgroups"


def test_elsewhere_it_bears_the_hosts() -> None:
    assert named_by({}, "host-3.site", "") == "host-3.site"
    assert named_by({"SLURMD_NODENAME": "gpu-n3"}, "host-3.site", "") == "host-3.site"


def test_so_it_does_in_each_component_of_a_heterogeneous_job() -> None:
    second = STEP.replace("job_77", "job_78")
    assert named_by({**SLURM, "SLURM_JOB_ID_HET_GROUP_1": "78"}, "host-3.site", second) == "gpu-n3"


def test_variables_of_another_job_are_not_believed() -> None:
    assert named_by(SLURM, "host-3.site", STEP.replace("job_77", "job_78")) == "host-3.site"
