"""What a rank is started with: its words, its environment, its attempt, and the checkpoint it resumes from."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_subjects import STANDIN, Job, shim_command, shimmed, words_of

from rankpatrol.core.starts import SuspectFile
from rankpatrol.launch.parent import PYTHON_SHIM, users_environment
from rankpatrol.launch.rundir import Cluster, ResumePoint

TELL = "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ)]))"
OURS = {"RANKPATROL_RUN_DIR", "RANKPATROL_RESUME_FROM"}


def told(job: Job, *words: str, env: dict[str, str] | None = None, shim: tuple[str, ...] | None = None) -> tuple[list[str], dict[str, str]]:
    """The rank's own words and environment."""
    command = shim_command(words) if shim is None else [*shim, *words]
    done = subprocess.run(
        command, env=env or job.environment(), capture_output=True, timeout=15, check=True, text=True, errors="surrogateescape"
    )
    argv, environment = json.loads(done.stdout)
    return argv, environment


def test_the_ranks_words_arrive_as_they_were_written(job: Job) -> None:
    words = ["two words", "'single' \"double\"", "", "--flag=ä→日本", "$HOME `x` \\n", "*", "line\nbreak"]
    assert told(job, "-c", TELL, *words)[0] == ["-c", *words]


def test_a_word_that_is_no_utf8_arrives_as_it_was(job: Job) -> None:
    code = "import os, sys; print(os.fsencode(sys.argv[1]))"
    done = subprocess.run([*shim_command(["-c", code]), b"caf\xe9"], env=job.environment(), capture_output=True, timeout=15, check=True)
    assert done.stdout == b"b'caf\\xe9'\n"


def test_a_module_is_run_as_a_module(job: Job, tmp_path: Path) -> None:
    (tmp_path / "train_me.py").write_text(TELL)
    done = subprocess.run(
        shim_command(["-m", "train_me", "--lr", "1"]), env=job.environment(), cwd=tmp_path, capture_output=True, timeout=15, check=True
    )
    assert json.loads(done.stdout)[0][1:] == ["--lr", "1"]


def launched(env: dict[str, str]) -> dict[str, str]:
    """The environment of a rank that a launcher started."""
    done = subprocess.run([sys.executable, str(STANDIN), "1", "-c", TELL], env=env, capture_output=True, timeout=15, check=True)
    environment: dict[str, str] = json.loads(done.stdout)[1]
    return environment


@pytest.mark.parametrize(
    "users",
    [
        {},
        {"PYTHON_EXEC": sys.executable, "PET_MAX_RESTARTS": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"},
        {"PWD": "/elsewhere", "OLDPWD": "/before", "SHLVL": "7", "_": "/usr/bin/torchrun"},
    ],
)
def test_the_ranks_environment_is_what_it_were_without_us(job: Job, users: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHON_EXEC", "PWD", "OLDPWD", "SHLVL", "_"):
        monkeypatch.delenv(name, raising=False)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    without = launched(dict(os.environ))
    rank_words = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    lent = {name: value for name, value in job.environment().items() if name not in rank_words}
    with_us = launched(lent)
    assert {name: value for name, value in with_us.items() if name not in OURS} == without
    assert with_us["RANKPATROL_RUN_DIR"] == str(job.run_dir.path)


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not here")
def test_a_shell_that_adds_names_of_its_own_leaves_no_trace(job: Job) -> None:
    """/bin/sh is bash on many machines, and counts its levels."""
    env = {name: value for name, value in job.environment().items() if name not in {"SHLVL", "_", "OLDPWD", "PWD"}}
    launcher = f"import subprocess; subprocess.run(['bash', '--posix', {str(PYTHON_SHIM)!r}, '-c', {TELL!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", launcher], env=env, capture_output=True, timeout=15, check=True)
    assert not {"SHLVL", "_", "OLDPWD", "PWD"} & json.loads(done.stdout)[1].keys()


def test_no_rank_is_run_as_if_we_were_not_here(job: Job) -> None:
    env = {name: value for name, value in job.environment().items() if name != "RANK"}
    argv, environment = told(job, "-c", TELL, "word", env=env)
    assert argv == ["-c", "word"]
    assert not any((job.run_dir.path / "claims").iterdir())
    assert environment["PYTHON_EXEC"] == str(PYTHON_SHIM)


def test_the_launchers_python_is_found_where_its_name_is_no_path(job: Job, tmp_path: Path) -> None:
    """argv[0] may be a word that means another Python on the rank's PATH."""
    decoy = tmp_path / "python"
    decoy.write_text("#!/bin/sh\necho decoy\n")
    decoy.chmod(0o755)
    launcher = f"import subprocess; subprocess.run([{str(PYTHON_SHIM)!r}, '-c', 'import sys; print(sys.version)'], check=True)"
    done = subprocess.run(
        ["python", "-c", launcher],
        executable=sys.executable,
        env=job.environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
        capture_output=True,
        timeout=15,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == sys.version


@pytest.mark.parametrize("path", ["/nowhere", None])
def test_a_training_with_hardly_a_path_starts(job: Job, path: str | None) -> None:
    env = job.environment()
    env.pop("PATH")
    seen = told(job, "-c", TELL, env=env if path is None else {**env, "PATH": path})[1]
    assert seen.get("PATH") == path


def test_a_virtual_environment_stays_one(job: Job) -> None:
    done = subprocess.run(
        shim_command(["-c", "import sys; print(sys.prefix, sys.executable)"]),
        check=True,
        env=job.environment(),
        capture_output=True,
        timeout=15,
        text=True,
    )
    assert done.stdout.split() == [sys.prefix, sys.executable]


# What setproctitle does with the words and the environment that the kernel shows of a process.
TAKES_A_TITLE = """
import ctypes, pathlib
fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
start, end = int(fields[45]), int(fields[48])
ctypes.memset(start, 0, end - start)
ctypes.memmove(start, b"a title of mine", 15)
"""


def test_a_launcher_that_has_changed_its_title_keeps_its_virtual_environment(job: Job) -> None:
    code = "import os, sys; print(sys.prefix, sys.executable, os.environ['PWD'])"
    launcher = f"import msgspec, subprocess\n{TAKES_A_TITLE}\nsubprocess.run([{str(PYTHON_SHIM)!r}, '-c', {code!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", launcher], env=job.environment(), capture_output=True, timeout=15, text=True, check=True)
    prefix, python, folder = done.stdout.split()
    assert (prefix, Path(python).parent) == (sys.prefix, Path(sys.executable).parent)
    assert folder == str(Path.cwd())


def test_a_rank_that_changes_its_title_is_still_its_shims_rank(job: Job) -> None:
    with shimmed(job, TAKES_A_TITLE + "ready()\nsys.exit(3)") as shim:
        assert words_of(shim) == ["ready"]
        place = job.place()
        assert shim.wait(10) == 3
    told = job.exit()
    assert told is not None
    assert (told.exit_status, place.rank) == (3, 0)


def test_an_interpreter_with_a_prefix_of_its_own_keeps_it(job: Job, tmp_path: Path) -> None:
    """As conda's and the standalone builds' have: no virtual environment, found by where their program lies."""
    prefix = tmp_path / "env with a blank"
    (prefix / "bin").mkdir(parents=True)
    real = Path(os.path.realpath(sys.executable))
    shutil.copy2(real, prefix / "bin" / "python3.11")
    (prefix / "bin" / "python").symlink_to("python3.11")
    (prefix / "lib").symlink_to(real.parents[1] / "lib")
    code = "import sys; print(sys.prefix); print(sys.executable)"
    launcher = f"import subprocess; subprocess.run([{str(PYTHON_SHIM)!r}, '-c', {code!r}], check=True)"
    program = [str(prefix / "bin" / "python"), "-c"]
    env = {**job.environment(), "LD_LIBRARY_PATH": str(real.parents[1] / "lib")}
    plain = subprocess.run([*program, code], env=env, capture_output=True, timeout=15, text=True, check=True)
    done = subprocess.run([*program, launcher], env=env, capture_output=True, timeout=15, text=True, check=True)
    assert done.stdout == plain.stdout
    assert done.stdout.splitlines()[0] == str(prefix)
    assert job.exit() is not None


def test_a_python_that_does_not_start_without_pythonhome_runs_the_rank_itself(job: Job, tmp_path: Path) -> None:
    """-I hides PYTHONHOME; a Python that was moved needs it to find its library."""
    moved = tmp_path / "python3"
    moved.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exit 1\nunset PYTHONHOME\nexec {sys.executable} "$@"\n')
    moved.chmod(0o755)
    launcher = [str(moved), "-c", f"'{PYTHON_SHIM}' -c 'print(5)'; exit $?"]
    env = job.environment(PYTHONHOME="/moved")
    done = subprocess.run(launcher, executable="/bin/sh", env=env, capture_output=True, timeout=15, text=True, check=True)
    assert done.stdout == "5\n"


def test_a_nested_run_gives_back_the_outer_users_words(job: Job) -> None:
    outer = job.environment(RANKPATROL_USER_PYTHON_EXEC="/my/python")
    inner = users_environment(outer)
    assert inner["PYTHON_EXEC"] == "/my/python"
    assert "PET_MAX_RESTARTS" not in inner
    assert users_environment({"PYTHON_EXEC": "/my/python", "PET_MAX_RESTARTS": "4"}) == {
        "PYTHON_EXEC": "/my/python",
        "PET_MAX_RESTARTS": "4",
    }


# Attempts and checkpoints.


def test_the_first_attempt_starts_from_nothing(job: Job) -> None:
    job.write(checkpoints="/checkpoints")
    argv, environment = told(job, "-c", TELL, "--resume={checkpoint}", "{checkpoint}")
    assert argv == ["-c", "--resume=", ""]
    assert environment["RANKPATROL_RESUME_FROM"] == ""


def test_the_first_attempt_of_a_job_that_was_queued_again_resumes_too(job: Job) -> None:
    job.write(checkpoints="/checkpoints", resumes=True)
    assert job.run_dir.write_first("resume/0.json", ResumePoint(checkpoint="/checkpoints/step20", step=20, by="agent"))
    assert told(job, "-c", TELL, "{checkpoint}")[0] == ["-c", "/checkpoints/step20"]


def test_a_node_that_joins_others_starts_from_where_they_do(job: Job) -> None:
    job.write(checkpoints="/checkpoints", cluster=Cluster(node="n5", first=False, run="exp7"))
    assert job.run_dir.write_first("resume/0.json", ResumePoint(checkpoint="/checkpoints/step20", step=20, by="agent"))
    assert told(job, "-c", TELL, "{checkpoint}")[0] == ["-c", "/checkpoints/step20"]


def test_a_later_attempt_resumes_from_the_first_word_that_was_written(job: Job) -> None:
    job.write(checkpoints="/checkpoints")
    assert job.run_dir.write_first("resume/1.json", ResumePoint(checkpoint="/checkpoints/step ä 20", step=20, by="agent"))
    assert not job.run_dir.write_first("resume/1.json", ResumePoint(checkpoint="/other", step=30, by="agent"))
    argv, environment = told(job, "-c", TELL, "--resume={checkpoint}", env=job.environment(restarts=1))
    assert argv == ["-c", "--resume=/checkpoints/step ä 20"]
    assert environment["RANKPATROL_RESUME_FROM"] == "/checkpoints/step ä 20"


def test_without_checkpoints_the_words_are_left_alone(job: Job) -> None:
    argv, environment = told(job, "-c", TELL, "{checkpoint}.pt")
    assert argv == ["-c", "{checkpoint}.pt"]
    assert "RANKPATROL_RESUME_FROM" not in environment


SUSPECTS = ({"file": "/data/shard ä.tar", "offset_bytes": 4096}, {"file": "/data/other", "offset_bytes": None})


@pytest.mark.parametrize("checkpoints", [None, "/checkpoints"])
def test_a_later_attempt_is_told_the_data_to_beware_of(job: Job, checkpoints: str | None) -> None:
    job.write(checkpoints=checkpoints)
    suspects = tuple(SuspectFile(**each) for each in SUSPECTS)
    job.run_dir.write_first("resume/1.json", ResumePoint(checkpoint="", step=None, by="agent", suspect_files=suspects))
    environment = told(job, "-c", TELL, env=job.environment(restarts=1))[1]
    assert json.loads(environment["RANKPATROL_SUSPECT_FILES"]) == list(SUSPECTS)
    assert "RANKPATROL_SUSPECT_FILES" not in told(job, "-c", TELL)[1]


def test_a_silent_agent_leaves_what_it_had_suspected(job: Job) -> None:
    job.write(checkpoints="/checkpoints")
    (job.run_dir.path / "newest_good.json").write_text(json.dumps({"checkpoint": "/c/20", "step": 20, "suspect_files": SUSPECTS}))
    with shimmed(
        job,
        "print(os.environ['RANKPATROL_SUSPECT_FILES'])",
        deadlines={"resume_s": 0.1},
        env=job.environment(restarts=1),
    ) as shim:
        assert json.loads(" ".join(words_of(shim))) == list(SUSPECTS)


@pytest.mark.parametrize("word", ["soon", None, 0, [], -1e18])
def test_a_time_to_start_that_makes_no_sense_holds_nobody_up(job: Job, word: object) -> None:
    (job.run_dir.path / "resume" / "1.json").write_text(json.dumps({"checkpoint": "", "not_before_unix_s": word, "suspect_files": word}))
    began = time.monotonic()
    told(job, "-c", TELL, env=job.environment(restarts=1))
    assert time.monotonic() - began < 5


def test_an_attempt_waits_for_its_time_and_no_longer_than_the_longest_pause(job: Job) -> None:
    (job.run_dir.path / "resume" / "1.json").write_text(json.dumps({"not_before_unix_s": time.time() + 3600}))
    began = time.monotonic()
    with shimmed(job, "ready()", deadlines={"pause_s": 0.5}, env=job.environment(restarts=1)) as shim:
        words_of(shim)
    assert 0.5 <= time.monotonic() - began < 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_attempt_that_waits_ends_when_it_is_told_to(job: Job, number: signal.Signals) -> None:
    (job.run_dir.path / "resume" / "1.json").write_text(json.dumps({"not_before_unix_s": time.time() + 3600}))
    with subprocess.Popen(shim_command(["-c", "pass"]), env=job.environment(restarts=1), stderr=subprocess.PIPE) as waiting:
        assert waiting.stderr is not None
        assert b"attempt 1 starts in 600 s" in waiting.stderr.readline()
        waiting.send_signal(number)
        assert (waiting.wait(5), waiting.stderr.read()) == (-number, b"")


@pytest.mark.parametrize("known", ["/checkpoints/step20", None])
def test_a_silent_agent_leaves_all_ranks_the_newest_it_had_verified(job: Job, known: str | None) -> None:
    job.write(checkpoints="/checkpoints")
    if known:
        (job.run_dir.path / "newest_good.json").write_text(json.dumps({"checkpoint": known, "step": 20}))
    began = time.monotonic()
    for rank in (0, 1):
        env = job.environment(rank=rank, world_size=2, restarts=1)
        with shimmed(
            job, "print('from', os.environ['RANKPATROL_RESUME_FROM'], sys.argv[1])", "{checkpoint}", deadlines={"resume_s": 0.3}, env=env
        ) as shim:
            assert words_of(shim) == ["from", *([known] * 2 if known else [])]
    assert 0.3 <= time.monotonic() - began < 5
    word = job.run_dir.read("resume/1.json", ResumePoint)
    assert word is not None
    assert (word.checkpoint, word.by) == (known or "", "shim")


def attempts_of(job: Job) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place in job.run_dir.places():
        found.setdefault(place.attempt, []).append(place.rank)
    return found


def test_a_second_launcher_in_one_job_opens_an_attempt_of_its_own_for_all_its_ranks(job: Job) -> None:
    env = {name: value for name, value in job.environment().items() if name not in {"RANK", "LOCAL_RANK"}}
    for ranks in ("1", "3"):
        subprocess.run([sys.executable, str(STANDIN), ranks, "-c", "pass"], env=env, timeout=15, check=True)
    assert attempts_of(job) == {0: [0], 1: [0, 1, 2]}


def test_each_start_by_one_launcher_is_one_attempt(job: Job, tmp_path: Path) -> None:
    report = tmp_path / "report"
    env = {**job.environment(), "PET_MAX_RESTARTS": "2", "STANDIN_REPORT": str(report)}
    code = "import os, sys, time; time.sleep(0.3); sys.exit(os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] != '2')"
    subprocess.run([sys.executable, str(STANDIN), "2", "-c", code], env=env, timeout=15, check=True)
    assert attempts_of(job) == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
    assert [json.loads(line)[1] for line in report.read_text().splitlines()] == [1, 1, 0]


def test_ranks_that_two_launchers_of_one_group_start_share_an_attempt(job: Job) -> None:
    """Two nodes of one job on one machine: their launchers live at the same time."""
    with shimmed(job, "ready()\nforever()", env=job.environment(rank=0, world_size=2)) as first:
        words_of(first)
        launcher = f"import subprocess; subprocess.run([{str(PYTHON_SHIM)!r}, '-c', 'pass'], check=True)"
        subprocess.run([sys.executable, "-c", launcher], env=job.environment(rank=1, world_size=2), timeout=15, check=True)
    assert attempts_of(job) == {0: [0, 1]}


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", "none"), ("SLURM_RESTART_COUNT", "many"), ("WORLD_SIZE", ""), ("RANK", "x")])
def test_a_count_that_is_no_number_harms_nobody(job: Job, name: str, value: str) -> None:
    assert told(job, "-c", TELL, env={**job.environment(), name: value})[1][name] == value
