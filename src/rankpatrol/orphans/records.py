"""What a scan sees, what is said about each process, and the proof that a release demands. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from rankpatrol.core.records import Missing, ProcessId, Record

# PROC_PID_INIT_INO of include/linux/proc_ns.h: pids mean to NVML what they mean here only in this namespace.
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
DEVICES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/renderD*", "/dev/davinci*")


class HomeKind(StrEnum):
    """Whose a cgroup is, as the kernel keeps it: a process cannot forge it, and it survives its parent."""

    JOB = "job"
    POD = "pod"
    CONTAINER = "container"
    SERVICE = "service"
    SESSION = "session"
    NONE = "none"


class Home(Record, frozen=True):
    """One process's cgroup in our words; `id` is a job id, a pod's or container's id, or a unit's name.

    `adopted`: a person's login that the scheduler moved into a job (pam_slurm_adopt puts ssh sessions into its step "extern").
    """

    kind: HomeKind
    id: str = ""
    adopted: bool = False


class JobState(StrEnum):
    """A scheduler's word on a job. UNKNOWN is a state: silence proves nothing."""

    LIVE = "live"
    ENDED = "ended"
    UNKNOWN = "unknown"


class JobWord(Record, frozen=True, kw_only=True):
    """What one authority says of one job. `grace_s` is None where the policy's holds; the shim's own record needs none.

    `devices`: the device files that were given to the job, None where that is not told. `of_older_than_ticks`: a word that was kept
    speaks of processes alone that began before it was given, since a job may be queued again.
    """

    job: str
    state: JobState
    by: str
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    uid: int | None = None
    devices: frozenset[str] | None = None
    grace_s: float | None = None
    of_older_than_ticks: int | None = None
    why: str = ""


class Environment(Record, frozen=True, tag="environment", kw_only=True):
    """The few variables that are looked at, and no other: any process can set them, so they are evidence of the second class."""

    job: str | None = None
    run_dir: str | None = None
    rank: int | None = None
    mps: bool = False


class RecordTie(Record, frozen=True, kw_only=True):
    """A record of `rankpatrol run` that ties a process to one of its ranks: the Unix session that the rank's shim made."""

    job: str
    attempt: int
    rank: int

    @property
    def key(self) -> str:
        """Under which the jobs' words are kept."""
        return f"{self.job}, attempt {self.attempt}, rank {self.rank}"


class ProcessSeen(Record, frozen=True, kw_only=True):
    """One process at one scan. `state` is the leader's; `blocked_threads` are in D, all `threads` counted.

    `devices`: open device files, over all its threads' descriptors. `kill_pending`: SIGKILL was sent and not yet taken.
    """

    id: ProcessId
    parent_pid: int
    session_id: int
    uid: int
    name: str
    state: str
    threads: int
    blocked_threads: int
    kill_pending: bool
    kernel_thread: bool
    started_unix_s: float
    exe: str | Missing
    wait_channel: str | Missing
    home: Home | Missing
    environment: Environment | Missing
    devices: tuple[str, ...] | Missing
    tie: RecordTie | None = None


class GpuProcess(Record, frozen=True):
    """One line of NVML's process lists; `used_bytes` is None where the driver does not say. `mps`: from the list of MPS clients."""

    pid: int
    used_bytes: int | None = None
    mps: bool = False


class GpuSeen(Record, frozen=True, kw_only=True):
    """One GPU as NVML tells it. `device` is its file, such as /dev/nvidia0."""

    index: int
    uuid: str
    name: str
    device: str
    total_bytes: int | Missing
    used_bytes: int | Missing
    busy_percent: int | Missing
    processes: tuple[GpuProcess, ...] | Missing
    mig: bool = False


class Scan(Record, frozen=True, kw_only=True):
    """Everything one scan saw. `processes` are the holders of devices and the processes of known jobs.

    `us`: our own pid and those of all our ancestors. `unseen`: processes whose descriptors the kernel did not show us.
    `session_uids`: users with a login session here. `mps_uids`: whose MPS servers run here.
    """

    at_unix_s: float
    node: str
    pid_namespace: str
    pid_max: int
    us: frozenset[int]
    processes: tuple[ProcessSeen, ...]
    living: frozenset[int]
    gpus: tuple[GpuSeen, ...] | Missing
    jobs: Mapping[str, JobWord] = {}
    session_uids: frozenset[int] = frozenset()
    mps_uids: frozenset[int] = frozenset()
    unseen: int = 0
    seconds: float = 0.0

    @property
    def initial_namespace(self) -> bool:
        """True where pids are what drivers and schedulers mean by them."""
        return self.pid_namespace == INITIAL_PID_NAMESPACE

    def live_uids(self) -> frozenset[int]:
        """Users with a live job that is known."""
        return frozenset(word.uid for word in self.jobs.values() if word.state is JobState.LIVE and word.uid is not None)


class Policy(Record, frozen=True, kw_only=True):
    """What proof takes. 150 s: Slurm's KillWait (30 s) and UnkillableStepTimeout (60 s), and 60 s more (slurm.conf(5)).

    `idle_floor_bytes`: used memory of an idle GPU. Ascend 910 shows 3.4 GB, so it is a setting, and memory alone never leads to a deed.
    """

    grace_s: float = 150.0
    scans: int = 2
    stuck_scans: int = 5
    stuck_for_s: float = 240.0
    kill_pending_s: float = 60.0
    ghost_scans: int = 3
    idle_floor_bytes: int = 1 << 30
    most: int = 8


class Verdict(StrEnum):
    """What is said of a process or a GPU. Only `ORPHAN` can carry a proof."""

    ORPHAN = "orphan"
    LIKELY = "likely orphan"
    ORPHAN_CONTAINER = "orphan container"
    LEFT_OVER = "left over"
    OWN = "job's own"
    MISPLACED = "misplaced"
    INTERACTIVE = "interactive"
    SERVICE = "service"
    STUCK = "stuck"
    HARMLESS = "harmless"
    OURSELVES = "never"
    UNKNOWN = "unknown"
    GHOST_PID = "ghost pid"
    GHOST_MEMORY = "ghost memory"
    GHOST_TELEMETRY = "ghost load"
    BAD_READER = "bad reader"


class ProvenOrphan(Record, frozen=True, kw_only=True):
    """The proof that a release demands. Only `prove` makes one."""

    process: ProcessId
    job: str
    ended: str
    tie: str
    devices: tuple[str, ...]
    scans: int


class Judged(Record, frozen=True, kw_only=True):
    """One process, or one GPU where `process` is None, with its verdict and why. `rows` are those of the decision table that spoke."""

    verdict: Verdict
    rows: tuple[int, ...]
    why: str
    advice: str = ""
    process: ProcessSeen | None = None
    gpu: int | None = None
    job: str = ""
    used_bytes: int | None = None
    proof: ProvenOrphan | None = None
