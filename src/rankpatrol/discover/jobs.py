"""From processes to jobs and ranks: pure rules over what launchers leave in an environment, thread names and the process tree."""

from collections.abc import Iterable, Mapping

from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.discover.records import Candidate, FoundJob, FoundRank, Survey, Unnumbered


class Numbering(Record, frozen=True, kw_only=True):
    """The variables in which one family of launchers tells a process its place; `only_with` must be a number besides."""

    told_by: str
    rank: str
    world_size: str
    local_rank: str
    only_with: str | None = None


# The first that is complete counts: under srun each torchrun has SLURM_PROCID, which numbers nodes, and its ranks have RANK besides.
NUMBERINGS = (
    Numbering(told_by="RANK", rank="RANK", world_size="WORLD_SIZE", local_rank="LOCAL_RANK"),
    Numbering(
        told_by="OMPI_COMM_WORLD_RANK",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Numbering(told_by="PMI_RANK", rank="PMI_RANK", world_size="PMI_SIZE", local_rank="MPI_LOCALRANKID"),
    # A batch script and all that it starts itself have SLURM_PROCID=0, and no step.
    Numbering(
        told_by="SLURM_PROCID", rank="SLURM_PROCID", world_size="SLURM_NTASKS", local_rank="SLURM_LOCALID", only_with="SLURM_STEP_ID"
    ),
)
# What names a job, where a launcher does: torchrun writes the word "none" where it was given no --rdzv-id.
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "KUBEFLOW_TRAINJOB_NAME", "PBS_JOBID", "LSB_JOBID")
OTHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANKPATROL_RUN_DIR")
VARIABLES = frozenset({
    *(name for each in NUMBERINGS for name in (each.rank, each.world_size, each.local_rank)),
    *(each.only_with for each in NUMBERINGS if each.only_with is not None),
    *JOB_VARIABLES,
    *OTHER_VARIABLES,
})  # fmt: skip
# Threads of a process group or of a loader; a process has them only where torch is at work in it.
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
LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.launch"}
)
_OURS = ("python-shim", "rankpatrol/launch/shim", "rankpatrol.agent")


def survey(candidates: Iterable[Candidate]) -> Survey:
    """The jobs among these processes, and the processes that belong to one but cannot be numbered."""
    seen = {candidate.id.pid: candidate for candidate in candidates}
    placed: dict[tuple[str, int], list[tuple[Candidate, FoundRank]]] = {}
    unnumbered: list[Unnumbered] = []
    for candidate in seen.values():
        if candidate.name in LOADER_NAMES or _is_ours(candidate):
            continue
        rank = numbered(candidate)
        if rank is not None and _is_python(candidate):
            placed.setdefault((_key(candidate, seen), rank.rank), []).append((candidate, rank))
        elif rank is None and GROUP_THREADS & candidate.thread_names:
            unnumbered.append(Unnumbered(process=candidate.id, name=candidate.name, why=_why_unnumbered(candidate)))
    jobs: dict[str, list[tuple[Candidate, FoundRank]]] = {}
    for (key, _), found in sorted(_without_launchers(placed, seen).items()):
        jobs.setdefault(key, []).append(_the_rank_itself(found, seen))
    return Survey(jobs=tuple(_job(key, members, seen) for key, members in jobs.items()), unnumbered=tuple(unnumbered))


def _without_launchers(
    placed: dict[tuple[str, int], list[tuple[Candidate, FoundRank]]], seen: Mapping[int, Candidate]
) -> dict[tuple[str, int], list[tuple[Candidate, FoundRank]]]:
    """Under srun a torchrun has a task's number itself: whoever stands above ranks that it has numbered is none."""
    above = {pid: candidate.parent_pid for pid, candidate in seen.items()}
    by_others = [candidate for found in placed.values() for candidate, rank in found if rank.told_by != "SLURM_PROCID"]
    launchers = {pid for candidate in by_others for pid in _line(candidate.parent_pid, above)}
    kept = {
        place: [(candidate, rank) for candidate, rank in found if rank.told_by != "SLURM_PROCID" or candidate.id.pid not in launchers]
        for place, found in placed.items()
    }
    return {place: found for place, found in kept.items() if found}


def numbered(candidate: Candidate) -> FoundRank | None:
    """The place that a launcher gave this process, or None where its environment does not say."""
    if isinstance(candidate.environment, Missing):
        return None
    told = {name: _number(candidate.environment.get(name, "")) for name in VARIABLES}
    for numbering in NUMBERINGS:
        rank, world_size, local_rank = told[numbering.rank], told[numbering.world_size], told[numbering.local_rank]
        if numbering.only_with is not None and told[numbering.only_with] is None:
            continue
        if rank is not None and world_size is not None and rank < world_size:
            return FoundRank(
                rank=rank,
                local_rank=rank if local_rank is None else local_rank,
                world_size=world_size,
                process=candidate.id,
                told_by=numbering.told_by,
                log_path=candidate.log_path,
            )
    return None


def _number(word: str) -> int | None:
    """Anybody may set a variable to anything; int() refuses more than some thousand digits."""
    return int(word) if len(word) <= 9 and word.isdecimal() else None


def matching(found: Survey, *, pid: int | None, job: str | None, above: Mapping[int, int]) -> tuple[FoundJob, ...]:
    """The jobs that a user means: by a pid of the launcher, of anything above it, or of a rank or below one; by an id; else all.

    `above` maps each process to its parent.
    """
    if job is not None:
        return tuple(each for each in found.jobs if job in {each.key, each.name})
    if pid is None:
        return found.jobs
    return tuple(each for each in found.jobs if _holds(each, pid, above))


def _holds(job: FoundJob, pid: int, above: Mapping[int, int]) -> bool:
    members = {rank.process.pid for rank in job.ranks} | ({job.launcher.pid} if job.launcher else set())
    return not members.isdisjoint(_line(pid, above)) or any(pid in _line(rank.process.pid, above) for rank in job.ranks)


def _line(pid: int, above: Mapping[int, int]) -> list[int]:
    """A process and all above it, but for init."""
    line: list[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        pid = above.get(pid, 0)
    return line


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
    above = {pid: candidate.parent_pid for pid, candidate in seen.items()}

    def order(pair: tuple[Candidate, FoundRank]) -> tuple[bool, int, int]:
        candidate = pair[0]
        depth = len(members.intersection(_line(candidate.parent_pid, above)))
        return not GROUP_THREADS & candidate.thread_names, depth, candidate.id.start_ticks

    return min(found, key=order)


def _launcher_pid(candidate: Candidate, seen: Mapping[int, Candidate]) -> int:
    """The nearest process above that has no number of its own; init where there is none."""
    pid = candidate.parent_pid
    while pid > 1 and (parent := seen.get(pid)) is not None:
        if numbered(parent) is None and not _is_ours(parent):
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
    )


def _name(environment: Mapping[str, str], first: Candidate) -> str:
    """The id that people know the job by, else its script's name."""
    named = next((environment[name] for name in JOB_VARIABLES if environment.get(name, "none") != "none"), None)
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


def ranks_as_identities(job: FoundJob) -> dict[int, ProcessId]:
    """Each rank's process."""
    return {rank.rank: rank.process for rank in job.ranks}
