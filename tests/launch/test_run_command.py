"""`rankpatrol run`: CMD's own end, what stands in its way, and what is left afterwards."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.launch.parent import check_command, make_job_dir
from rankpatrol.launch.rundir import Cluster, JobSpec

STANDIN = Path(__file__).with_name("standin_launcher.py")
RUN = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job"]
CAN_MOUNT = os.getuid() == 0 and shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, with a temporary folder of its own beside it: what is left there was left by us."""
    folder = tmp_path / "here"
    folder.mkdir()
    temporary = Path(f"/tmp/rp-{os.getpid()}-{tmp_path.name[-24:]}")
    temporary.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield folder
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


def run(*command: str | bytes, code: int, before: Sequence[str] = (), typed: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
    words: list[str | bytes] = [*before, *RUN, *command]
    done = subprocess.run(words, capture_output=True, timeout=50, check=False, input=typed)
    assert done.returncode == code, done.stderr
    return done


def events() -> list[str]:
    told = Path("job/events.jsonl")
    return [json.loads(line)["kind"] for line in told.read_text().splitlines()] if told.exists() else []


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 5", 5), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -SEGV $$", 139), ("kill -9 $$", 137)],
)
def test_commands_own_end_is_passed_on_and_written_down(here: Path, script: str, code: int) -> None:
    run("bash", "-c", script, code=code)
    last = json.loads(Path("job/events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["exit_code"]) == ("job_ended", code)


def test_input_and_output_are_commands_own(here: Path) -> None:
    done = run("sh", "-c", "cat; echo oops >&2", typed=b"hi\n\xff", code=0)
    assert done.stdout == b"hi\n\xff"
    assert b"oops\n" in done.stderr


def test_a_word_that_is_no_utf8_reaches_the_command(here: Path) -> None:
    assert run("echo", b"caf\xe9", code=0).stdout == b"caf\xe9\n"
    assert command_written_down() == ["echo", "caf\\xe9"]


def command_written_down() -> list[str]:
    return list(json.loads(Path("job/job.json").read_text())["command"])


def test_a_closed_error_stream_costs_nothing(here: Path) -> None:
    code = """
from pathlib import Path
from rankpatrol.launch.parent import make_job_dir, run_job
from rankpatrol.launch.rundir import JobSpec, RunDir
job_dir, run_dir = make_job_dir(Path("job")), RunDir.create()
spec = JobSpec(job="job", job_dir=str(job_dir), command=(), policy="recover", patience_s=1, checkpoints=None, started_unix_s=0)
code = run_job(["sh", "-c", "exit 4"], spec, {}, run_dir)
run_dir.remove()
raise SystemExit(code)
"""
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code], timeout=15, check=False)
    assert done.returncode == 4
    assert events() == ["job_started", "job_ended"]


def test_the_trainings_own_modules_do_not_stand_in_the_agents_way(here: Path) -> None:
    """A training folder may hold a json.py or a queue.py."""
    program = shutil.which("rankpatrol", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the rankpatrol script is not installed")
    for name in ("json", "queue", "msgspec", "signal"):
        Path(f"{name}.py").write_text("raise RuntimeError('the wrong one')\n")
    done = subprocess.run([program, "run", "--job-dir", "job", "true"], capture_output=True, timeout=50, check=True)
    assert b"the wrong one" not in done.stderr
    assert events() == ["job_started", "job_ended"]


def test_the_exit_code_survives_an_ignored_sigchld(here: Path) -> None:
    run("sh", "-c", "exit 6", code=6, before=["sh", "-c", 'trap \'\' CHLD; exec "$0" "$@"'])


# What stands in the way.


def nothing_was_started() -> None:
    assert not Path("job/job.json").exists()
    assert not Path("job/events.jsonl").exists()


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("./missing", 127, "./missing: no such file"),
        ("", 127, "command not found"),
        ("./plain", 126, "chmod +x ./plain"),
        ("./folder", 126, "./folder cannot be executed"),
        ("./no-interpreter", 126, "first line must name an interpreter"),
        ("./no-program", 126, "cannot start ./no-program: Exec format error"),
    ],
)
def test_a_command_that_cannot_start_ends_with_the_shells_code(here: Path, word: str, code: int, said: str) -> None:
    for name, text, mode in (("plain", "", 0o644), ("no-interpreter", "#!/no/such\n", 0o755), ("no-program", "text\n", 0o755)):
        Path(name).write_text(text)
        Path(name).chmod(mode)
    Path("folder").mkdir()
    assert said in run(word, code=code).stderr.decode()
    nothing_was_started()


def test_a_missing_torchrun_is_told_how_to_find_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    said = run("torchrun", "train.py", code=127).stderr.decode()
    assert "Activate the environment that has torch" in said
    nothing_was_started()


def test_a_folder_with_an_earlier_job_is_not_touched(here: Path) -> None:
    run("true", code=0)
    before = Path("job/events.jsonl").read_bytes()
    assert b"holds an earlier job" in run("touch", "started", code=65).stderr
    assert Path("job/events.jsonl").read_bytes() == before
    assert not Path("started").exists()


def test_a_folder_that_is_a_file_is_refused(here: Path) -> None:
    Path("job").touch()
    assert b"cannot write to the job directory job: File exists" in run("touch", "started", code=65).stderr
    assert not Path("started").exists()


@pytest.mark.skipif(not CAN_MOUNT, reason="only root may mount")
@pytest.mark.parametrize("trouble", ["size=64k none job; dd if=/dev/zero of=job/filler bs=4k 2>/dev/null || true", "ro none job"])
def test_a_full_or_closed_disk_is_refused(here: Path, trouble: str) -> None:
    Path("job").mkdir()
    shell = f'mount -t tmpfs -o {trouble}; "$0" "$@" || code=$?; ls -A job >&2; exit $code'
    said = run("touch", "started", code=65, before=["unshare", "-m", "sh", "-c", shell]).stderr.decode()
    assert "cannot write to the job directory job" in said
    assert ".writable" not in said
    assert not Path("started").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_folder_of_another_users_is_refused(here: Path) -> None:
    here.chmod(0o700)
    with pytest.raises(NoPermission, match="Permission denied"), Nobody():
        make_job_dir(here / "job")
    with pytest.raises(BaseException) as told, Nobody():
        check_command([f"{here}/plain"])
    assert getattr(told.value, "exit_code", None) == 126


class Nobody:
    """File permissions as another user has them."""

    def __enter__(self) -> None:
        os.seteuid(65534)

    def __exit__(self, *_: object) -> None:
        os.seteuid(0)


def test_a_folder_whose_name_is_no_utf8_is_refused(here: Path) -> None:
    command: list[str | bytes] = [*RUN[:-1], b"caf\xe9", "true"]
    done = subprocess.run(command, capture_output=True, timeout=50, check=False)
    assert done.returncode == 65, done.stderr
    assert b"is not UTF-8" in done.stderr


def test_the_spec_says_where_the_job_is(here: Path) -> None:
    run("true", code=0)
    spec = json.loads(Path("job/job.json").read_text())
    assert spec["job_dir"] == str(here / "job")
    assert {"run_dir", *JobSpec.__struct_fields__} == spec.keys()
    with pytest.raises(BadInput):
        make_job_dir(Path("job"))


def test_a_job_that_was_queued_again_gets_a_folder_beside_that_of_its_first_start(here: Path) -> None:
    first = Cluster(node="n1", first=True, run="slurm-77.0.0")
    again, joins = (Cluster(node=node, first=node == "n1", run="slurm-77.0.1") for node in ("n1", "n2"))
    for folder, cluster in (("job", first), ("job-1", again)):
        made = make_job_dir(here / folder, cluster)
        (made / "job.json").write_bytes(msgspec.json.encode({"job": folder, "cluster": cluster}))
    assert make_job_dir(here / "job", again, "1") == make_job_dir(here / "job", joins, "1") == here / "job.1"
    assert make_job_dir(here / "job-1", joins, "1") == here / "job-1", "its user has named each start, and the first node was faster"
    assert make_job_dir(here / "job", None, "1") == here / "job.1"


SAYS = "import os; print('from', os.environ.get('RANKPATROL_RESUME_FROM') or 'scratch', flush=True)"


@pytest.mark.parametrize(("words", "said"), [((), b"from scratch"), (("--resume",), b"from ")])
def test_a_first_attempt_resumes_where_a_person_says_so(here: Path, words: tuple[str, ...], said: bytes) -> None:
    saves = "import torch, sys; torch.save({'step': 20, 'w': torch.zeros(9)}, sys.argv[1])"
    Path("ckpt").mkdir()
    subprocess.run([sys.executable, "-c", saves, "ckpt/step_000020.pt"], check=True)
    Path("says.py").write_text(SAYS)
    done = run(*words, "--no-probe", "--checkpoints", "ckpt", sys.executable, str(STANDIN), "1", "says.py", code=0)
    assert said + (b"" if not words else f"{here}/ckpt/step_000020.pt".encode()) in done.stdout


WAITS = "import pathlib, time\nprint('began', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)"


def test_a_job_whose_ranks_end_well_has_finished_though_nobody_is_left_to_say_how_its_command_ended(here: Path) -> None:
    Path("waits.py").write_text(WAITS)
    words = [*RUN, "--no-probe", sys.executable, str(STANDIN), "1", "waits.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"began\n"
        run_dir = Path(json.loads(Path("job/job.json").read_text())["run_dir"])
        wait_until(lambda: "attempt_started" in events())
        job.kill()
        job.wait()
        Path("go").touch()
        wait_until(lambda: not run_dir.exists())
    last = json.loads(Path("job/events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["reason"], last["exit_code"]) == ("job_ended", "finished", None)


def wait_until(come_true: Callable[[], bool]) -> None:
    until = time.monotonic() + 40
    while not come_true():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


def test_to_resume_without_checkpoints_is_wrong_usage(here: Path) -> None:
    assert b"Add --checkpoints DIR" in run("--resume", "true", code=64).stderr
    assert not Path("job").exists()


def test_ranks_that_torchrun_starts_past_the_shim_are_said_to_be_unwatched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = here / "torchrun"
    torchrun.write_text("#!/bin/sh\nexit 0\n")
    torchrun.chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    assert b"rankpatrol shim -- ./start.sh" in run("torchrun", "--no-python", "./start.sh", code=0).stderr
    shutil.rmtree("job")
    assert b"not watched" not in run("torchrun", "train.py", "--no-python", code=0).stderr
