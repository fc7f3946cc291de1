"""The probe's `sitecustomize`: in the rank it marks, anywhere else it is nothing, and nobody else's word changes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from probe_subjects import close, plain_environment, ranked, stand_in_torch

from rankpatrol.core.records import Missing
from rankpatrol.launch.probe.sheet import now_ns
from rankpatrol.launch.shim import marks as shim_marks
from rankpatrol.launch.shim.marks import PROBE_PATH, make_marks, with_probe

TELL = """
import json, os, sys
site = sys.modules.get("sitecustomize")
print(json.dumps([dict(os.environ), sys.path, site and site.__file__, sorted(name for name in sys.modules if "probe" in name)]))
"""
OLD_PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3"), key=lambda path: int(path.parts[-3].split(".")[1]))
ABLE_PYTHONS = [str(path) for path in OLD_PYTHONS if int(path.parts[-3].split(".")[1]) >= 8]


def users_site(folder: Path, code: str) -> str:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return str(folder)


def without_us(words: list[str], env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=15, check=False)


@pytest.mark.parametrize("users", [None, "", "{tmp}/nothing", "{tmp}/site", "{tmp}/nothing:{tmp}/site:{tmp}/site", "{tmp}/site:"])
def test_the_rank_finds_its_environment_its_path_and_its_sitecustomize_as_without_us(tmp_path: Path, users: str | None) -> None:
    users_site(tmp_path / "site", "import os; os.environ['CAME'] = __file__ + __name__")
    env = plain_environment() if users is None else plain_environment(PYTHONPATH=users.format(tmp=tmp_path))
    plain = json.loads(without_us(["-c", TELL], env).stdout)
    with ranked(["-c", TELL], tmp_path, env=env) as rank:
        seen = json.loads(rank.says())
        rank.end()
        assert seen[:3] == plain[:3]
        assert seen[3]
        assert rank.seen().phase == "initialisation"


@pytest.mark.parametrize("code", ["raise ValueError('mine')", "import not_there", "raise ImportError('x', name='sitecustomize')", "1/"])
def test_what_the_users_sitecustomize_raises_is_told_as_without_us(tmp_path: Path, code: str) -> None:
    env = plain_environment(PYTHONPATH=users_site(tmp_path / "site", code))
    plain = without_us(["-c", TELL], env)
    with ranked(["-c", TELL], tmp_path, env=env) as rank:
        out, errors = rank.end()
        assert errors == plain.stderr
        assert json.loads(out)[:3] == json.loads(plain.stdout)[:3]
        assert not isinstance(rank.marks(), Missing)


@pytest.mark.skipif(not OLD_PYTHONS, reason="no other Pythons here")
def test_the_oldest_and_the_newest_python_here_load_it(tmp_path: Path) -> None:
    for python in {ABLE_PYTHONS[0], ABLE_PYTHONS[-1]}:
        with ranked(["-W", "error", "-c", TELL], tmp_path, python=python) as rank:
            assert rank.end()[1] == ""
            assert rank.seen().steps == 0


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_does_not_load_it_is_said(tmp_path: Path, flag: str) -> None:
    with ranked([flag, "-c", "print(5)"], tmp_path) as rank:
        assert rank.end()[0] == "5\n"
        found = rank.marks()
        assert isinstance(found, Missing)
        assert "-I" in found.reason


def test_another_sitecustomize_that_runs_the_next_one_runs_us_and_the_one_after_us(tmp_path: Path) -> None:
    chains = """
import importlib.machinery, importlib.util, os, sys
places = [place for place in sys.path if place != os.path.dirname(__file__)]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""
    first = users_site(tmp_path / "first", chains)
    last = users_site(tmp_path / "last", "import os; os.environ['CAME'] = 'last'")
    env, held = with_probe(plain_environment(PYTHONPATH=last), str(tmp_path), "")
    assert held is not None
    env["PYTHONPATH"] = first + os.pathsep + env["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-c", TELL],
        env=env,
        pass_fds=held.inherited(),
        start_new_session=True,
        capture_output=True,
        timeout=15,
        check=True,
    )
    close(held)
    environment, path, site, modules = json.loads(done.stdout)
    assert (environment["CAME"], site) == ("last", first + "/sitecustomize.py")
    assert PROBE_PATH not in path
    assert modules


# Who is no rank.


def test_a_child_of_the_rank_neither_loads_nor_sees_anything(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TELL!r}], check=True)"
    with ranked(["-c", code], tmp_path) as rank:
        environment, path, site, modules = json.loads(rank.end()[0])
    assert not {name for name in environment if name.startswith("RANKPATROL_")} - {"RANKPATROL_LEMONS"}
    assert "PYTHONPATH" not in environment
    assert (PROBE_PATH in path, modules) == (False, [])
    assert site is None or not site.startswith(PROBE_PATH)


def test_a_python_below_a_rank_that_is_none_is_no_rank(tmp_path: Path) -> None:
    """Our words reach it through the shell."""
    script = f"{sys.executable} -c '{TELL}'; exit 0"
    with ranked(["-c", script], tmp_path, python="/bin/sh") as rank:
        environment, path, _, modules = json.loads(rank.end()[0])
        assert isinstance(rank.marks(), Missing)
    assert not {name for name in environment if name.startswith("RANKPATROL_")} - {"RANKPATROL_LEMONS"}
    assert (PROBE_PATH in path, modules) == (False, [])


def test_an_orphan_that_fell_to_the_shim_is_no_rank(tmp_path: Path) -> None:
    """It leads no session."""
    with ranked(["-c", TELL], tmp_path, leads_session=False) as rank:
        assert json.loads(rank.end()[0])[3] == []
        assert isinstance(rank.marks(), Missing)


def test_the_servers_processes_of_multiprocessing_are_no_ranks_and_hear_no_signal_of_ours(tmp_path: Path) -> None:
    """forkserver and spawn start Python anew; so does the tracker of their resources."""
    (tmp_path / "train.py").write_text("""
import json, multiprocessing, sys
def tells(queue):
    caught = [line for line in open("/proc/self/status") if line.startswith("SigCgt")][0]
    queue.put([[name for name in sys.modules if "probe" in name], bool(int(caught.split()[1], 16) & 1 << 22)])
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=tells, args=(queue,))
        child.start()
        print(json.dumps(queue.get()))
        child.join()
""")
    with ranked([str(tmp_path / "train.py")], tmp_path) as rank:
        lines = rank.end()[0].splitlines()
        assert len(lines) == 2
        for line in lines:
            assert json.loads(line) == [[], False]
        assert rank.seen().steps == 0


def test_a_forked_child_marks_nothing(tmp_path: Path) -> None:
    code = """
import os, sys, torch.serialization
def wait():
    print("inside", flush=True)
    sys.stdin.readline()
if os.fork() == 0:
    torch.serialization.save(wait)
    os._exit(0)
os.wait()
torch.serialization.save(wait)
print("outside", flush=True)
sys.stdin.readline()
"""
    with ranked(["-c", code], tmp_path, env=plain_environment(PYTHONPATH=stand_in_torch(tmp_path))) as rank:
        assert rank.says() == "inside"
        assert rank.seen().phase == "initialisation"
        rank.go_on()
        assert rank.says() == "inside"
        before = rank.seen()
        assert before.phase == "checkpoint"
        rank.go_on()
        assert rank.says() == "outside"
        after = rank.seen()
        assert after.phase == "initialisation"
        assert after.phase_since_mono_s > before.phase_since_mono_s
        rank.go_on()
        rank.end()


GOES_DOWN_SLOWLY = """
import os, sys
class Held:
    def __del__(self, read=os.read, write=os.write):
        write(1, b"going down\\n")
        read(0, 1)
held = Held()
"""


@pytest.mark.parametrize("hook", ["", "sys.excepthook = lambda *_: os.write(2, b'ValueError, by another hook')\n"])
def test_an_exception_that_ends_the_program_is_marked_while_its_interpreter_goes_down(tmp_path: Path, hook: str) -> None:
    before_s = now_ns() / 1e9
    with ranked(["-c", GOES_DOWN_SLOWLY + hook + "raise ValueError('no such batch')"], tmp_path) as rank:
        assert rank.says() == "going down"
        raised_at_s = rank.seen().raised_at_mono_s
        assert raised_at_s is not None
        assert before_s < raised_at_s < now_ns() / 1e9
        rank.go_on()
        assert "ValueError" in rank.end()[1]
        assert rank.process.returncode == 1


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyboardInterrupt", "try:\n    raise ValueError\nexcept ValueError:\n    pass"])
def test_a_program_that_ends_without_one_marks_none(tmp_path: Path, end: str) -> None:
    with ranked(["-c", GOES_DOWN_SLOWLY + end], tmp_path) as rank:
        assert rank.says() == "going down"
        assert rank.seen().raised_at_mono_s is None
        rank.go_on()


def test_an_exception_of_a_module_that_is_run_is_marked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GOES_DOWN_SLOWLY + "def main():\n    raise ValueError\nmain()\n")
    with ranked(["-m", "train"], tmp_path, env=plain_environment(PYTHONPATH=str(tmp_path))) as rank:
        assert rank.says() == "going down"
        assert rank.seen().raised_at_mono_s is not None
        rank.go_on()


CONSOLE = "import code; code.InteractiveInterpreter({}).runsource('1/0')\n"
HANDLED = (
    CONSOLE,
    "import code; code.InteractiveInterpreter(globals()).runsource('1/0')\n",
    "import code; code.InteractiveConsole(globals()).push('1/0')\n",
    "import code; code.InteractiveInterpreter().runsource('1/')\n",
    """
def run_cell():
    try:
        1 / 0
    except ZeroDivisionError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
run_cell()
""",
)


@pytest.mark.parametrize("handled", HANDLED)
@pytest.mark.parametrize("python", [sys.executable, *ABLE_PYTHONS])
def test_an_exception_that_an_interpreter_within_the_program_has_handled_is_not_marked(tmp_path: Path, handled: str, python: str) -> None:
    with ranked(["-c", GOES_DOWN_SLOWLY + handled], tmp_path, python=python) as rank:
        assert rank.says() == "going down"
        assert rank.seen().raised_at_mono_s is None
        rank.go_on()


def test_one_that_ends_the_program_after_that_is_marked(tmp_path: Path) -> None:
    with ranked(["-c", GOES_DOWN_SLOWLY + CONSOLE + "raise ValueError"], tmp_path) as rank:
        assert rank.says() == "going down"
        assert rank.seen().raised_at_mono_s is not None
        rank.go_on()


def test_an_exception_is_marked_before_other_threads_are_waited_for(tmp_path: Path) -> None:
    """A rank like this one stands for ever, and its peers with it."""
    code = """
import sys, threading, torch
def upload():
    threading.main_thread().join()
    print("uploading", flush=True)
    sys.stdin.readline()
threading.Thread(target=upload).start()
raise ValueError
"""
    with ranked(["-c", code], tmp_path, env=plain_environment(PYTHONPATH=stand_in_torch(tmp_path))) as rank:
        assert rank.says() == "uploading"
        assert rank.seen().raised_at_mono_s is not None
        rank.go_on()


def test_a_forked_child_that_raises_is_no_rank_that_raised(tmp_path: Path) -> None:
    code = """
import os, sys
if os.fork() == 0:
    raise ValueError
os.wait()
print("waited", flush=True)
sys.stdin.readline()
"""
    with ranked(["-c", code], tmp_path) as rank:
        assert rank.says() == "waited"
        assert rank.seen().raised_at_mono_s is None
        rank.go_on()


def test_a_thread_that_saves_beside_the_training_is_no_checkpoint_phase(tmp_path: Path) -> None:
    code = """
import sys, threading, torch.serialization
def wait():
    print("inside", flush=True)
    sys.stdin.readline()
thread = threading.Thread(target=torch.serialization.save, args=(wait,))
thread.start()
thread.join()
"""
    with ranked(["-c", code], tmp_path, env=plain_environment(PYTHONPATH=stand_in_torch(tmp_path))) as rank:
        assert rank.says() == "inside"
        assert rank.seen().phase == "initialisation"
        rank.go_on()


def test_a_program_that_took_the_ranks_place_is_told_from_it(tmp_path: Path) -> None:
    code = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(5, flush=True); input()'])"
    with ranked(["-c", code], tmp_path) as rank:
        assert rank.says() == "5"
        found = rank.marks()
        assert isinstance(found, Missing)
        assert "(exec)" in found.reason
        rank.go_on()


# Imports that it follows.


def test_imports_that_are_only_asked_for_or_fail_at_first_are_followed_in_the_end(tmp_path: Path) -> None:
    saves = "import os\nif 'FAIL' in os.environ:\n    raise RuntimeError('not yet')\ndef save(work):\n    'Saves.'\n    return work()\n"
    code = """
import importlib.util, os, sys
spec = importlib.util.find_spec("torch.serialization")
os.environ["FAIL"] = "1"
try:
    import torch.serialization
except RuntimeError as problem:
    print(problem, flush=True)
del os.environ["FAIL"]
import torch.serialization as it
assert "exec_module" not in vars(it.__loader__)
assert it.save.__name__ == "save" and it.save.__doc__ == "Saves." and it.save.__module__ == "torch.serialization"
def wait(word):
    print(word, flush=True)
    sys.stdin.readline()
it.save(lambda: wait("inside"))
try:
    it.save(lambda: 1 / 0)
except ZeroDivisionError:
    wait("raised")
"""
    env = plain_environment(PYTHONPATH=stand_in_torch(tmp_path, saves))
    with ranked(["-c", code], tmp_path, env=env) as rank:
        assert (rank.says(), rank.says()) == ("not yet", "inside")
        assert rank.seen().phase == "checkpoint"
        rank.go_on()
        assert rank.says() == "raised"
        assert rank.seen().phase == "initialisation"
        rank.go_on()
        assert rank.end()[1] == ""


# What may be missing.


def test_a_descriptor_that_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.write_bytes(b"x" * shim_marks.SIZE_BYTES)
    env, held = with_probe(plain_environment(), str(tmp_path), "")
    assert held is not None
    close(held)
    with other.open("r+b") as file:
        env["RANKPATROL_MARKS_FD"] = str(file.fileno())
        done = subprocess.run(
            [sys.executable, "-c", "print(5)"],
            env=env,
            pass_fds=(file.fileno(),),
            start_new_session=True,
            capture_output=True,
            timeout=15,
            check=True,
        )
    assert (done.stdout, done.stderr) == (b"5\n", b"")
    assert other.read_bytes() == b"x" * shim_marks.SIZE_BYTES


def test_broken_pieces_of_the_probe_do_not_keep_the_rank_from_starting(tmp_path: Path) -> None:
    copy = tmp_path / "probe"
    shutil.copytree(Path(PROBE_PATH).parent, copy)
    (copy / "hooks.py").write_text("1/0")
    env, held = with_probe(plain_environment(), str(tmp_path), "")
    assert held is not None
    env["PYTHONPATH"] = str(copy / "on_path")
    done = subprocess.run(
        [sys.executable, "-c", "print(5)"],
        env=env,
        pass_fds=held.inherited(),
        start_new_session=True,
        capture_output=True,
        timeout=15,
        check=True,
    )
    close(held)
    assert (done.stdout, done.stderr) == (b"5\n", b"")


def test_without_memory_files_a_file_without_a_name_holds_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with ranked(["-c", "print(5)"], tmp_path) as rank:
        assert rank.end() == ("5\n", "")
        assert rank.seen().phase == "initialisation"
    assert list(tmp_path.iterdir()) == []


def test_without_any_room_for_marks_the_rank_starts_as_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert with_probe({"PYTHONPATH": "/mine"}, "/nowhere", "") == ({"PYTHONPATH": "/mine"}, None)


def test_nobody_can_shorten_the_marks_under_the_rank(tmp_path: Path) -> None:
    marks_fd = make_marks(str(tmp_path))
    with pytest.raises(PermissionError):
        os.ftruncate(marks_fd, 0)
    os.close(marks_fd)


def test_a_rank_that_was_killed_leaves_its_last_marks(tmp_path: Path) -> None:
    with ranked(["-c", "import signal; print(5, flush=True); signal.pause()"], tmp_path) as rank:
        rank.says()
        before = rank.seen()
        rank.process.send_signal(signal.SIGKILL)
        rank.process.wait(10)
        assert rank.seen() == before
