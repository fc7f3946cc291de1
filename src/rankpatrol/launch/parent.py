"""`rankpatrol run`: starts CMD and an agent beside it, passes signals on, and ends with CMD's exit code. It decides nothing."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rankpatrol.core.errors import BadInput, CommandFailed, NoPermission, PatrolError
from rankpatrol.core.records import Record
from rankpatrol.launch.agent_keeper import AgentKeeper, agent_command
from rankpatrol.launch.left_behind import await_ranks, note_order
from rankpatrol.launch.rundir import Cluster, JobSpec, LauncherExit, RunDir
from rankpatrol.launch.shim.rank_environment import LENT, USERS
from rankpatrol.launch.witness import GroupWitness
from rankpatrol.system.files import read_plain, write_once
from rankpatrol.system.process import identify

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
# si_code of sigaction(2): the terminal driver signals the whole foreground group, CMD included.
FROM_KERNEL = 0x80
_MOST_BYTES = 16 << 20
PYTHON_SHIM = Path(__file__).with_name("python-shim")
SHIM = Path(__file__).with_name("shim")


class CommandNotFound(CommandFailed):
    """CMD is not there."""

    exit_code = 127  # the shell's own number, which `run` passes on


class CommandNotExecutable(CommandFailed):
    """CMD is there but cannot be run."""

    exit_code = 126


def check_command(command: Sequence[str]) -> None:
    """Raise with the exit code a shell would give where CMD cannot start, before anything is created."""
    word = command[0]
    if shutil.which(word):
        return
    if os.path.sep in word:
        if os.path.lexists(word) or _is_hidden(word):
            raise CommandNotExecutable(
                f"{word} cannot be executed", help=f"Make it executable (chmod +x {word}), or name its interpreter first."
            )
        raise CommandNotFound(f"{word}: no such file", help="Check the spelling, and the folder you are in.")
    if word == "torchrun":
        raise CommandNotFound(
            "torchrun is not on PATH",
            help="Activate the environment that has torch, or name it: rankpatrol run /path/to/env/bin/torchrun … "
            "(or: rankpatrol run python -m torch.distributed.run …). torchrun comes with torch.",
        )
    raise CommandNotFound(f"{word}: command not found", help="Check the spelling, or give the full path of the command.")


def _is_hidden(path: str) -> bool:
    """True where its folder does not let us look."""
    try:
        os.lstat(path)
    except OSError as problem:
        return problem.errno == errno.EACCES
    return False


def make_job_dir(path: Path, cluster: Cluster | None = None, again: str = "") -> Path:
    """Create the job directory and prove that it can be written. Raises NoPermission or BadInput before any training starts.

    Nodes of one job share it: the first one writes the job down. `again`: which start of the job this is, where its scheduler has queued
    it again; it gets a folder beside that of an earlier start, since its command names the same one.
    """
    if again and _is_of_another_start(path, cluster):
        path = path.with_name(f"{path.name}.{again}")
    joins = cluster is not None and not cluster.first
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / "job.json").exists() and not joins:
            raise _earlier_job(path)
        probe = path / f".writable.{os.getpid()}"
        try:
            probe.write_bytes(b"rankpatrol\n")
        finally:
            probe.unlink(missing_ok=True)
    except PermissionError as problem:
        raise NoPermission(f"cannot write to the job directory {path}: {problem.strerror}", help=_WRITABLE) from problem
    except OSError as problem:
        raise BadInput(f"cannot write to the job directory {path}: {problem.strerror}", help=_WRITABLE) from problem
    return path.resolve()


def _is_of_another_start(path: Path, cluster: Cluster | None) -> bool:
    """True where a job is written down there, and not by the first node of ours."""
    try:
        told = msgspec.json.decode(read_plain(path / "job.json", _MOST_BYTES), type=_Pointer)
    except (OSError, PatrolError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return cluster is None or told.cluster is None or told.cluster.run != cluster.run


class _Pointer(Record, frozen=True):
    cluster: Cluster | None = None


def _earlier_job(path: Path) -> BadInput:
    return BadInput(
        f"{path} holds an earlier job", help="Give another --job-dir (nothing there is overwritten), or leave it out to get a new one."
    )


_WRITABLE = "Nothing was started. Name a folder you can write to, with free space: rankpatrol run --job-dir DIR …"
_NO_INTERPRETER = (
    "Its first line must name an interpreter that is there (#!/bin/sh), or be a program for this machine. Nothing else was started."
)


def launch_environment(run_dir: RunDir, *, recover: bool, max_restarts: int | None) -> dict[str, str]:
    """What CMD gets beside the user's own environment. All of it is read by torchrun alone; other launchers pass it by."""
    users = users_environment(os.environ)
    ours = {"RANKPATROL_RUN_DIR": str(run_dir.path), **{USERS + name: users[name] for name in LENT if name in users}}
    # Where the shim cannot be executed (a noexec mount, lost mode bits) the training starts without it.
    if os.access(PYTHON_SHIM, os.X_OK):
        ours["PYTHON_EXEC"] = str(PYTHON_SHIM)
    # Without it torchrun 2.13 cannot restart gloo: its shared store keeps the dead ranks' addresses.
    ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = users.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if max_restarts is not None:
        ours["PET_MAX_RESTARTS"] = str(max_restarts)
    elif recover:
        ours["PET_MAX_RESTARTS"] = users.get("PET_MAX_RESTARTS", "3")
    return ours


def users_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the user had set: under another `rankpatrol run` the lent variables are its own, and a shim below a shim would never end."""
    if environment.get("PYTHON_EXEC", "").rpartition("/")[2] != PYTHON_SHIM.name:
        return dict(environment)
    users = {name: value for name, value in environment.items() if name not in LENT}
    return users | {name: environment[USERS + name] for name in LENT if USERS + name in environment}


def run_job(command: Sequence[str], spec: JobSpec, extra: Mapping[str, str], run_dir: RunDir) -> int:
    """Run CMD to its end and return its exit code, 128 + n where signal n ended it. Raises PatrolError where it cannot start."""
    job_dir = Path(spec.job_dir)
    _write_down(spec, run_dir)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by our user, it would lose CMD's exit code (wait(2))
    # What our user ignores (nohup) is neither heard nor passed on.
    heard = tuple(number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN)
    users_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, signal.SIGCHLD})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, users_mask)

    ours = job_dir if spec.cluster is None or spec.cluster.first else None
    launcher = _start(command, {**os.environ, **extra}, unblock, heard, ours)
    if launcher is None:
        early: int = min(signal.sigpending() & set(heard))
        return 128 + early
    witness, agent = GroupWitness(heard), AgentKeeper(agent_command(run_dir.path), unblock)
    identity = identify(launcher.pid)
    if identity is not None:
        with contextlib.suppress(OSError):  # the run directory is gone or full: CMD runs all the same
            run_dir.write("launcher.json", identity)
    exit_code = _wait(launcher, Ears(heard, witness), agent, run_dir)
    witness.dismiss()
    # In this order: an agent that finds CMD gone, and no word how, has to leave that open.
    agent.keep(at_once=True)
    told = _tell_exit(run_dir, exit_code)
    launcher.wait()
    await_ranks(run_dir, ENDING)
    if told:
        agent.farewell(ENDING)
    agent.dismiss()
    return exit_code


def _start(
    command: Sequence[str],
    environment: Mapping[str, str],
    unblock: Callable[[], None],
    heard: Sequence[signal.Signals],
    job_dir: Path | None,
) -> "subprocess.Popen[bytes] | None":
    """CMD, or None where we were told to end before it was there to be told. Raises CommandNotExecutable."""
    try:
        if not ENDING & set(heard) & signal.sigpending():
            return subprocess.Popen(list(command), env=environment, preexec_fn=unblock)  # ruff: ignore[PLW1509] - one thread
    except OSError as problem:
        _take_back(job_dir)
        raise CommandNotExecutable(f"cannot start {command[0]}: {problem.strerror}", help=_NO_INTERPRETER) from problem
    _take_back(job_dir)
    return None


def _take_back(job_dir: Path | None) -> None:
    """There was no job: its folder can be given again, unless it is another node's (None)."""
    if job_dir is None:
        return
    with contextlib.suppress(OSError):
        (job_dir / "job.json").unlink()
        job_dir.rmdir()


class Ears:
    """What we hear, and whether CMD has heard it as well."""

    def __init__(self, heard: Sequence[signal.Signals], witness: GroupWitness) -> None:
        self._heard, self._witness = {*heard, signal.SIGCHLD}, witness

    def listen(self) -> tuple[signal.Signals, bool] | None:
        """The next signal, and True where CMD has it too; None when nothing came within a second, or only a child's end."""
        seen = signal.sigtimedwait(self._heard, 1.0)
        if seen is None or seen.si_signo == signal.SIGCHLD:
            return None
        number = signal.Signals(seen.si_signo)
        if seen.si_code == FROM_KERNEL:
            # A hang-up is told to the session's leader alone (docker run -t, ssh -t); a key to the whole foreground group (termios(3)).
            return number, number != signal.SIGHUP or os.getsid(0) != os.getpid()
        return number, self._witness.heard(number)


def _wait(launcher: "subprocess.Popen[bytes]", ears: Ears, agent: AgentKeeper, run_dir: RunDir) -> int:
    """CMD's exit code. CMD is not reaped yet: its pid is its own as long as we may signal it."""
    interrupts = 0
    while (ended := os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        agent.keep()
        heard = ears.listen()
        if heard is None:
            continue
        number, by_all = heard
        if number in ENDING:
            interrupts += number == signal.SIGINT
            note_order(run_dir, number, interrupts)
        if not by_all:
            os.kill(launcher.pid, number)
    return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status


def _tell_exit(run_dir: RunDir, exit_code: int) -> bool:
    """False where the agent cannot learn of it, and would wait for ever."""
    try:
        run_dir.write("launcher_exit.json", LauncherExit(exit_code=exit_code, ended_unix_s=time.time()))
    except OSError:
        return False
    return True


def _write_down(spec: JobSpec, run_dir: RunDir) -> None:
    """The job, in the run directory and in its own. Raises BadInput before anything is started."""
    # A word of CMD need not be UTF-8, JSON must be.
    spec = msgspec.structs.replace(spec, command=tuple(os.fsencode(word).decode(errors="backslashreplace") for word in spec.command))
    public = spec if spec.cluster is None else msgspec.structs.replace(spec, cluster=msgspec.structs.replace(spec.cluster, meet_at=None))
    pointer = {"run_dir": str(run_dir.path), **msgspec.to_builtins(public)}
    try:
        run_dir.write("job.json", spec)
        if spec.cluster is not None and not spec.cluster.first:
            return
        first = write_once(Path(spec.job_dir) / "job.json", msgspec.json.format(msgspec.json.encode(pointer)))
    except OSError as problem:
        raise BadInput(f"the job cannot be written down: {problem.strerror} ({problem.filename})", help=_WRITABLE) from problem
    except UnicodeEncodeError as problem:
        raise BadInput(
            "the path of a folder is not UTF-8", help="Nothing was started. Give --job-dir and --checkpoints other names."
        ) from problem
    if not first:
        raise _earlier_job(Path(spec.job_dir))
