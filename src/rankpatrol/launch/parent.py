"""`rankpatrol run`: starts CMD and an agent beside it, passes signals on, and ends with CMD's exit code. It decides nothing."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rankpatrol.core.errors import BadInput, CommandFailed, NoPermission
from rankpatrol.launch.rundir import JobSpec, LauncherExit, OrderedEnd, RunDir
from rankpatrol.system.files import write_atomic
from rankpatrol.system.process import identify

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
# si_code of sigaction(2): the terminal driver signals the whole foreground group, CMD included.
FROM_KERNEL = 0x80
# Sealing what a dying job left takes seconds; longer than this the user waits for nothing.
AGENT_LAST_WORDS_S = 15.0
AGENT_STARTS_MOST = 20
PYTHON_SHIM = Path(__file__).with_name("python-shim")


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
    if os.path.sep in word and Path(word).exists():
        raise CommandNotExecutable(
            f"{word} cannot be executed", help=f"Make it executable (chmod +x {word}), or name its interpreter first."
        )
    if word == "torchrun":
        raise CommandNotFound(
            "torchrun is not on PATH",
            help="Activate the environment that has torch, or name it: rankpatrol run /path/to/env/bin/torchrun … "
            "(or: rankpatrol run python -m torch.distributed.run …). torchrun comes with torch.",
        )
    raise CommandNotFound(f"{word}: command not found", help="Check the spelling, or give the full path of the command.")


def make_job_dir(path: Path) -> Path:
    """Create the job directory and prove that it can be written. Raises NoPermission or BadInput before any training starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / "job.json").exists():
            raise BadInput(
                f"{path} holds an earlier job",
                help="Give another --job-dir (nothing there is overwritten), or leave it out to get a new one.",
            )
        probe = path / ".writable"
        probe.write_bytes(b"rankpatrol\n")
        probe.unlink()
    except (PermissionError, FileExistsError, NotADirectoryError) as problem:
        raise NoPermission(f"cannot write to the job directory {path}: {problem.strerror}", help=_WRITABLE) from problem
    except OSError as problem:
        raise BadInput(f"cannot write to the job directory {path}: {problem.strerror}", help=_WRITABLE) from problem
    return path.resolve()


_WRITABLE = "Nothing was started. Name a folder you can write to, with free space: rankpatrol run --job-dir DIR …"


def launch_environment(run_dir: RunDir, *, recover: bool, max_restarts: int | None) -> dict[str, str]:
    """What CMD gets beside the user's own environment. All of it is read by torchrun alone; other launchers pass it by."""
    ours = {
        "RANKPATROL_RUN_DIR": str(run_dir.path),
        "PYTHON_EXEC": str(PYTHON_SHIM),
        # Without it torchrun 2.13 cannot restart gloo: its shared store keeps the dead ranks' addresses.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
    }
    if "PYTHON_EXEC" in os.environ:
        ours["RANKPATROL_PYTHON"] = ours["RANKPATROL_USER_PYTHON_EXEC"] = os.environ["PYTHON_EXEC"]
    if "PET_MAX_RESTARTS" in os.environ:
        ours["RANKPATROL_USER_PET_MAX_RESTARTS"] = os.environ["PET_MAX_RESTARTS"]
    if max_restarts is not None:
        ours["PET_MAX_RESTARTS"] = str(max_restarts)
    elif recover and "PET_MAX_RESTARTS" not in os.environ:
        ours["PET_MAX_RESTARTS"] = "3"
    return ours


class AgentKeeper:
    """The agent beside the training: it may die and is started again; it never holds the training up."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._starts_left = AGENT_STARTS_MOST
        self._next_start_mono_s = 0.0
        self._agent: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Start the agent where none runs, at most once a second."""
        now = time.monotonic()
        if self._agent is not None and self._agent.poll() is None:
            return
        if self._starts_left == 0 or now < self._next_start_mono_s:
            return
        self._starts_left -= 1
        self._next_start_mono_s = now + 1.0
        with contextlib.suppress(OSError):  # no process to spare now: tried again in a second
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "rankpatrol.agent", str(self._job_dir)],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
                preexec_fn=_unblock_signals,  # ruff: ignore[PLW1509] - this process has one thread
            )

    def farewell(self) -> None:
        """Give the agent time for its last words, then end it: it is ours."""
        if self._agent is None:
            return
        try:
            self._agent.wait(AGENT_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self._agent.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agent.wait(2.0)
            self._agent.kill()


def run_job(command: Sequence[str], spec: JobSpec, extra: Mapping[str, str], run_dir: RunDir) -> int:
    """Run CMD to its end and return its exit code, 128 + n where signal n ended it. Raises PatrolError where it cannot start."""
    job_dir = Path(spec.job_dir)
    run_dir.write("job.json", spec)
    write_atomic(job_dir / "job.json", _pointer(run_dir, spec))
    signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    agent = AgentKeeper(job_dir)
    agent.keep()
    try:
        launcher = subprocess.Popen(list(command), env={**os.environ, **extra}, preexec_fn=_unblock_signals)  # ruff: ignore[PLW1509] - one thread
    except OSError as problem:
        _tell_exit(run_dir, 127 if isinstance(problem, FileNotFoundError) else 126)
        agent.farewell()
        raise CommandNotExecutable(f"cannot start {command[0]}: {problem.strerror}") from problem
    identity = identify(launcher.pid)
    if identity is not None:
        run_dir.write("launcher.json", identity)
    exit_code = _wait(launcher, agent, run_dir)
    _tell_exit(run_dir, exit_code)
    agent.farewell()
    return exit_code


def _wait(launcher: "subprocess.Popen[bytes]", agent: AgentKeeper, run_dir: RunDir) -> int:
    while launcher.poll() is None:
        agent.keep()
        heard = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, 1.0)
        if heard is None or heard.si_signo == signal.SIGCHLD:
            continue
        if heard.si_signo in ENDING:
            with contextlib.suppress(OSError):
                run_dir.write_first("ending.json", OrderedEnd(signal=signal.Signals(heard.si_signo).name, at_unix_s=time.time()))
        if heard.si_code != FROM_KERNEL:
            launcher.send_signal(heard.si_signo)
    status: int = launcher.returncode
    return status if status >= 0 else 128 - status


def _tell_exit(run_dir: RunDir, exit_code: int) -> None:
    with contextlib.suppress(OSError):
        run_dir.write("launcher_exit.json", LauncherExit(exit_code=exit_code, ended_unix_s=time.time()))


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _pointer(run_dir: RunDir, spec: JobSpec) -> bytes:
    """The job directory's own job.json: what was run, and where its run directory is."""
    return msgspec.json.format(msgspec.json.encode({"run_dir": str(run_dir.path), **msgspec.to_builtins(spec)}))
