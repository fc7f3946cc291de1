"""What rankpatrol touches of a training, each with the switch that turns it off. The table is ARCHITECTURE.md's, in a user's words."""

from rankpatrol.core.records import Record


class Touch(Record, frozen=True):
    """One thing that is touched, and how not to have it."""

    what: str
    switch: str


TOUCHED = (
    Touch(
        "torchrun's environment: PYTHON_EXEC, PET_MAX_RESTARTS, TORCH_DISABLE_SHARE_RDZV_TCP_STORE, RANKPATROL_RUN_DIR", "do not use `run`"
    ),
    Touch(
        "a parent above each rank: a session of its own, PR_SET_PDEATHSIG, PR_SET_PTRACER, its output also in a log",
        "do not use `run` or `shim`",
    ),
    Touch("RANKPATROL_RESUME_FROM in each rank, and {checkpoint} in the command", "no --checkpoints"),
    Touch(
        "a probe in each rank: a sitecustomize on PYTHONPATH, hooks on optimizer, save, compile, groups and exit, torch's worker server",
        "--no-probe",
    ),
    Touch("each rank's CPUs and memory policy: bound to the NUMA node of its GPU where that is certain", "--no-bind"),
    Touch(
        "SIGURG, where a rank has no use for it: it writes its Python stacks into a pipe; sent only where py-spy cannot read it",
        "--no-probe, or a handler of the training's own",
    ),
    Touch("a failed rank's exit is held back until the others' evidence is taken: 20 s at most", "do not use `run` or `shim`"),
    Touch(
        "memory of ranks is read (py-spy, without a pause); one native stack of a rank already judged: a pause of 0.3 s", "do not use `run`"
    ),
    Touch("a job that hangs is ended and started again, once its evidence is sealed", "--policy observe or ask; rankpatrol pause"),
    Touch("the job directory is written, and its old bundles above 5 GB are removed", "--job-dir elsewhere"),
)
