"""From processes to jobs and ranks: pure rules over what launchers leave in an environment, thread names and the process tree."""

import re
from collections.abc import Iterable, Mapping

from rankpatrol.core.lineage import above
from rankpatrol.core.records import Missing
from rankpatrol.discover.records import Candidate, FoundJob, FoundRank, Survey, Unnumbered
from rankpatrol.launch.shim.placing import LAUNCHERS, TOGETHER, TORCHRUN, VIRTUAL, place_of

# What names a job, where a launcher does: torchrun writes the word "none" where it was given no --rdzv-id.
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "KUBEFLOW_TRAINJOB_NAME", "PBS_JOBID", "LSB_JOBID")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OTHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANKPATROL_RUN_DIR")
VARIABLES = frozenset({
    *(name for each in LAUNCHERS for name in (each.rank, each.local_rank, *each.world_size, *each.only_with)),
    *VIRTUAL,
    "CUDA_VISIBLE_DEVICES",
    *JOB_VARIABLES,
    *OTHER_VARIABLES,
    *TOGETHER,
})  # fmt: skip
# Threads that a process group starts in its member, by backend: without ptrace, for any user, they tell that a rank has joined.
GROUP_THREADS = frozenset({"gloo_tcp_loop", "pt_gloo_runloop", "pt_nccl_watchdg", "pt_nccl_heartbt", "pt_nccl_runhook"})
LOADER_NAMES = frozenset({"pt_data_worker", "pt_data_pin"})
LAUNCHER_NAMES = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "colossalai",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "orted",
    "slurmstepd",
    "pt_elastic",
)
NAMES = ("python", "pt_", *LAUNCHER_NAMES)
LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.launch"}
)
_OURS = ("python-shim", "rankpatrol/launch/shim", "rankpatrol.agent")


def survey(candidates: Iterable[Candidate]) -> Survey:
    """The jobs among these processes, and the processes that belong to one but cannot be numbered."""
    seen = {candidate.id.pid: candidate for candidate in candidates}
    launchers = _above_torchruns_ranks(seen)
    placed: dict[tuple[str, int], list[tuple[Candidate, FoundRank]]] = {}
    unnumbered: list[Unnumbered] = []
    for candidate in seen.values():
        if candidate.name in LOADER_NAMES or _is_ours(candidate) or candidate.id.pid in launchers:
            continue
        rank = numbered(candidate)
        if rank is not None and _is_python(candidate):
            placed.setdefault((_key(candidate, seen), rank.rank), []).append((candidate, rank))
        elif rank is None and GROUP_THREADS & candidate.thread_names:
            unnumbered.append(Unnumbered(process=candidate.id, name=candidate.name, why=_why_unnumbered(candidate)))
    jobs: dict[str, list[tuple[Candidate, FoundRank]]] = {}
    for (key, _), found in sorted(placed.items()):
        jobs.setdefault(key, []).append(_the_rank_itself(found, seen))
    return Survey(jobs=tuple(_job(key, members, seen) for key, members in jobs.items()), unnumbered=tuple(unnumbered))


def _above_torchruns_ranks(seen: Mapping[int, Candidate]) -> frozenset[int]:
    """Under srun each torchrun is a numbered task of Slurm's, and only its children are ranks."""
    parents = {pid: candidate.parent_pid for pid, candidate in seen.items()}
    found: set[int] = set()
    for pid, candidate in seen.items():
        if _told_by_torchrun(candidate):
            found.update(each for each in above(pid, parents) if each in seen and not _told_by_torchrun(seen[each]))
    return frozenset(found)


def _told_by_torchrun(candidate: Candidate) -> bool:
    return not isinstance(candidate.environment, Missing) and place_of(candidate.environment, (TORCHRUN,)) is not None


def numbered(candidate: Candidate) -> FoundRank | None:
    """The place that a launcher gave this process, or None where its environment does not say."""
    if isinstance(candidate.environment, Missing):
        return None
    place = place_of(candidate.environment)
    if place is None or place.rank >= place.world_size or not _tells_size(candidate.environment, place.said_by):
        return None
    return FoundRank(
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        process=candidate.id,
        told_by=place.said_by,
        log_path=candidate.log_path,
    )


def _tells_size(environment: Mapping[str, str], launcher: str) -> bool:
    """A RANK alone may be anything: a user's own variable, a shell's."""
    names = (name for each in LAUNCHERS if each.launcher == launcher for name in each.world_size)
    return any(environment.get(name) for name in names)


def matching(found: Survey, *, pid: int | None, job: str | None, parents: Mapping[int, int]) -> tuple[FoundJob, ...]:
    """The jobs that a user means: by a pid of the launcher, of anything above it, or of a rank or below one; by an id; else all."""
    if job is not None:
        return tuple(each for each in found.jobs if job in {each.key, each.shared_key.partition("-")[2], each.name})
    if pid is None:
        return found.jobs
    return tuple(each for each in found.jobs if _holds(each, pid, parents))


def _holds(job: FoundJob, pid: int, parents: Mapping[int, int]) -> bool:
    members = {rank.process.pid for rank in job.ranks} | ({job.launcher.pid} if job.launcher else set())
    line = {pid, *above(pid, parents)}
    return not members.isdisjoint(line) or any(pid in {rank.process.pid, *above(rank.process.pid, parents)} for rank in job.ranks)


def _is_python(candidate: Candidate) -> bool:
    """A shell or a wrapper carries its child's variables too. torch renames main threads, and users their processes."""
    if GROUP_THREADS & candidate.thread_names or candidate.name.startswith(("python", "pt_")):
        return True
    return not isinstance(candidate.command, Missing) and bool(candidate.command) and "python" in candidate.command[0].rpartition("/")[2]


def _is_ours(candidate: Candidate) -> bool:
    words = () if isinstance(candidate.command, Missing) else candidate.command[:6]
    return any(mark in word for word in words for mark in _OURS) or any(word.rpartition("/")[2] == "rankpatrol" for word in words[:4])


def _the_rank_itself(found: list[tuple[Candidate, FoundRank]], seen: Mapping[int, Candidate]) -> tuple[Candidate, FoundRank]:
    """Of several processes with one rank's variables: the one in a process group, else the one above the others."""
    members = {candidate.id.pid for candidate, _ in found}
    parents = {pid: candidate.parent_pid for pid, candidate in seen.items()}

    def order(pair: tuple[Candidate, FoundRank]) -> tuple[bool, int, int]:
        candidate = pair[0]
        depth = len(members.intersection(above(candidate.id.pid, parents)))
        return not GROUP_THREADS & candidate.thread_names, depth, candidate.id.start_ticks

    return min(found, key=order)


def _launcher_pid(candidate: Candidate, seen: Mapping[int, Candidate]) -> int:
    """The nearest process above that has no number of its own; init where there is none."""
    pid = candidate.parent_pid
    while pid > 1 and (parent := seen.get(pid)) is not None:
        if not _is_ours(parent) and (numbered(parent) is None or (_told_by_torchrun(candidate) and not _told_by_torchrun(parent))):
            return pid
        pid = parent.parent_pid
    return pid


def _is_launcher(candidate: Candidate) -> bool:
    """Ranks may as well stand below a shell, which lives on when they are gone."""
    if candidate.name.startswith(LAUNCHER_NAMES):
        return True
    words = () if isinstance(candidate.command, Missing) else candidate.command[:6]
    return any(word.rpartition("/")[2].startswith(LAUNCHER_NAMES) or word in LAUNCHER_MODULES for word in words)


def _key(candidate: Candidate, seen: Mapping[int, Candidate]) -> str:
    """What ranks of one job have in common. Two jobs may well share a port or the id "none", but not a launcher and a port."""
    environment = {} if isinstance(candidate.environment, Missing) else candidate.environment
    if slurm := environment.get("SLURM_JOB_ID"):
        return f"slurm {slurm}:{environment.get('MASTER_PORT', '')}"
    return f"{_launcher_pid(candidate, seen)}:{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"


def _job(key: str, members: list[tuple[Candidate, FoundRank]], seen: Mapping[int, Candidate]) -> FoundJob:
    first = members[0][0]
    environment = {} if isinstance(first.environment, Missing) else first.environment
    launchers = {_launcher_pid(candidate, seen) for candidate, _ in members}
    above = seen.get(launchers.pop()) if len(launchers) == 1 else None
    return FoundJob(
        key=key,
        name=_name(environment, first),
        uid=first.uid,
        launcher=above.id if above is not None and _is_launcher(above) else None,
        ranks=tuple(rank for _, rank in members),
        patrolled_by=environment.get("RANKPATROL_RUN_DIR"),
        shared_key=_shared_key(environment, first),
        together={name: environment[name] for name in TOGETHER if name in environment},
    )


def _shared_key(environment: Mapping[str, str], first: Candidate) -> str:
    """One name on all nodes, over restarts where the launcher gives one: an address and port change with each start."""
    if slurm := environment.get("SLURM_JOB_ID"):
        return f"slurm-{slurm}"
    named = next((environment[name] for name in JOB_VARIABLES if environment.get(name, "none") != "none"), None)
    if named is not None:
        return f"{first.uid}-{named}"
    return f"{first.uid}-{environment.get('MASTER_ADDR', '')}-{environment.get('MASTER_PORT', '')}"


def _name(environment: Mapping[str, str], first: Candidate) -> str:
    """The id that people know the job by, else its script's name. `torchrun --standalone` makes up a UUID, which nobody knows."""
    ids = (environment.get(name, "none") for name in JOB_VARIABLES)
    named = next((each for each in ids if each != "none" and not _UUID.fullmatch(each)), None)
    words = () if isinstance(first.command, Missing) else first.command
    script = next((word.rpartition("/")[2].removesuffix(".py") for word in words if word.endswith(".py")), None)
    return named or script or first.name


def _why_unnumbered(candidate: Candidate) -> str:
    if isinstance(candidate.environment, Missing):
        return candidate.environment.reason
    if not candidate.environment:
        return (
            "its environment holds no launcher's variables: it was forked (mp.spawn sets them after the start), or setproctitle wiped them"
        )
    return f"its environment holds only {', '.join(sorted(candidate.environment))}"
