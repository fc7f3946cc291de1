"""The rank's output: unchanged, complete, kept, and never a reason for the rank to wait or to die."""

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launch_subjects import PRELUDE, QUICK_SHIM, Job, gone, heard_ready, rest_of, shim_command, shimmed, wait_for, watched, words_of

from rankpatrol.launch.shim import output, rank_log
from rankpatrol.launch.shim.output import Outlet
from rankpatrol.launch.shim.rank_log import RankLog

MEGABYTE = 1 << 20
UPLOADER = """
if os.fork() == 0:
    os.setsid()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.01)
    os.read(int(sys.argv[1]), 1)
    print("uploaded", flush=True)
    os._exit(0)
ready(0)
"""


def test_both_streams_pass_unchanged_and_are_kept(job: Job) -> None:
    code = r"import os; os.write(1, b'a\r\nb\0\xff\n'); os.write(2, b'\x1b[31merror\x1b[0m'); os.write(1, b'no newline')"
    done = subprocess.run(shim_command(["-c", code]), env=job.environment(), capture_output=True, timeout=10, check=True)
    assert (done.stdout, done.stderr) == (b"a\r\nb\0\xff\nno newline", b"\x1b[31merror\x1b[0m")
    kept = job.log().read_bytes()
    assert sorted(kept) == sorted(done.stdout + done.stderr)
    assert b"a\r\nb\0\xff\n" in kept


def test_output_and_errors_on_one_stream_keep_their_order(job: Job) -> None:
    code = "import os\nfor n in range(2000): os.write(1 + n % 2, b'%d ' % n)"
    done = subprocess.run(
        shim_command(["-c", code]), env=job.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=True
    )
    assert done.stdout == job.log().read_bytes() == b"".join(b"%d " % n for n in range(2000))


def test_fifty_megabytes_arrive_whole_and_hardly_later(job: Job, tmp_path: Path) -> None:
    code = "import os, sys\nfor _ in range(800): os.write(1, b'x' * 65535 + b'\\n')"
    began = time.monotonic()
    with shimmed(job, code) as shim:
        received = rest_of(shim)
        assert shim.wait(10) == 0
    took_s = time.monotonic() - began
    assert len(received) == 800 * 65536
    assert received.count(b"\n") == 800
    kept = job.log().read_bytes()
    assert len(kept) == len(received) or b"could not be kept" in kept
    assert took_s < 5  # 0.3 s on a quiet machine


def test_a_reader_that_closes_does_not_harm_the_rank(job: Job) -> None:
    code = "ready()\nsys.stdin.read()\nfor n in range(20000): print('line', n)\nprint('done', file=sys.stderr)"
    process = subprocess.Popen(
        shim_command(["-u", "-c", PRELUDE + code]),
        env=job.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 0
    assert errors == b"done\n"
    assert b"line 19999\n" in job.log().read_bytes()


def test_a_full_disk_behind_the_output_loses_that_output_and_no_later_one(job: Job) -> None:
    """/dev/full refuses every write; without us the rank's own print would have failed."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(shim_command(["-c", "print('x' * 100000)"]), env=job.environment(), stdout=full, timeout=10, check=False)
    assert done.returncode == 0
    assert job.log().stat().st_size == 100001


@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
def test_closed_streams_do_not_turn_output_into_signals(job: Job, closed: tuple[int, ...], tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = f"import os, signal; os.write(1, bytes(range(1, 20)) * 100); os.write(2, b'\\x0a' * 100); open({str(done)!r}, 'w').write('1')"
    command = ["/bin/sh", "-c", " ".join(["exec", '"$0"', '-c "$1"', *(f"{number}>&-" for number in closed)]), *shim_command([]), code]
    assert subprocess.run(command, env=job.environment(), timeout=10, check=False).returncode == 0
    assert done.read_text() == "1"


def paused_reader(job: Job, code: str) -> tuple["subprocess.Popen[bytes]", int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(shim_command(["-c", PRELUDE + code]), env=job.environment(), stdout=writer)
    os.close(writer)
    return process, reader


def test_what_a_paused_reader_has_not_read_yet_is_neither_lost_nor_doubled(job: Job) -> None:
    """`| less`: the rank has ended, the shim as well, and everything is still there for the next page."""
    lines = [f"{number:07}" for number in range(8500)]
    process, reader = paused_reader(job, "sys.stdout.write(''.join(f'{n:07}\\n' for n in range(8500)))")
    assert process.wait(10) == 0
    with os.fdopen(reader) as page:
        assert page.read().split() == lines


def test_a_paused_reader_does_not_hold_signals_up(job: Job) -> None:
    process, reader = paused_reader(job, "while True: sys.stdout.write('x' * 65536)")
    job.place()
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    os.close(reader)


def test_an_uploader_that_outlives_a_good_end_is_left_alone_and_still_heard(job: Job) -> None:
    go, start = os.pipe()
    os.set_inheritable(go, True)
    env = job.environment()
    process = subprocess.Popen(
        shim_command(
            ["-c", PRELUDE + UPLOADER.replace("int(sys.argv[1])", "os.open(sys.argv[1], os.O_RDONLY)"), f"/proc/{os.getpid()}/fd/{go}"]
        ),
        env=env,
        bufsize=0,
        stdout=subprocess.PIPE,
    )
    heard_ready(process)
    assert process.wait(10) == 0
    os.write(start, b"g")
    assert words_of(process) == ["uploaded"]
    assert rest_of(process) == b""
    wait_for(lambda: True if b"uploaded" in job.log().read_bytes() else None)
    for descriptor in (go, start):
        os.close(descriptor)
    assert process.stdout is not None
    process.stdout.close()


def test_the_one_who_stays_for_an_uploader_holds_no_socket_of_the_rank(job: Job) -> None:
    with shimmed(job, "if os.fork() == 0:\n    ready(os.getpid())\n    forever()\ntime.sleep(0.2)") as shim:
        (uploader,) = heard_ready(shim)
        assert shim.wait(10) == 0
        with watched(uploader):
            wait_for(lambda: refuses(job))  # it lets go of it as soon as it runs


def refuses(job: Job) -> bool | None:
    try:
        job.dial().close()
    except ConnectionRefusedError:
        return True
    return None


# Terminals.


@contextmanager
def terminal(job: Job, code: str, rows: int = 31, columns: int = 97) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A rank on a terminal: the shim, and the terminal's other side."""
    ours, theirs = pty.openpty()
    resize(ours, rows, columns)
    process = subprocess.Popen(
        shim_command(["-u", "-c", PRELUDE + code]),
        env=job.environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)


def resize(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def read_until(descriptor: int, end: bytes) -> bytes:
    seen = b""
    while end not in seen:
        assert select.select([descriptor], [], [], 10)[0], seen
        seen += os.read(descriptor, 4096)
    return seen


def test_a_terminal_stays_a_terminal(job: Job) -> None:
    code = (
        "print(*(os.isatty(fd) for fd in (0, 1, 2)), *os.get_terminal_size(1))\nprint('two', file=sys.stderr)\nprint('\\x1b[1mend\\x1b[0m')"
    )
    with terminal(job, code) as (shim, screen):
        seen = read_until(screen, b"end\x1b[0m\r\n")
        assert shim.wait(10) == 0
    assert seen == b"True True True 97 31\r\ntwo\r\n\x1b[1mend\x1b[0m\r\n"
    assert job.log().read_bytes() == seen.replace(b"\r\n", b"\n")


def test_the_rank_sees_its_terminal_change_size(job: Job) -> None:
    code = "ready()\nwhile os.get_terminal_size(1).columns != 50: time.sleep(0.02)\nprint('narrow')"
    with terminal(job, code) as (shim, screen):
        read_until(screen, b"ready")
        resize(screen, 20, 50)
        read_until(screen, b"narrow")
        assert shim.wait(10) == 0


def test_a_terminal_that_is_stopped_does_not_hold_the_end_up(job: Job) -> None:
    with terminal(job, "ready()\nfor n in range(200): print('x' * 100)\nprint('end')") as (shim, screen):
        assert shim.wait(10) == 0
        assert read_until(screen, b"end\r\n").count(b"x") == 20000


def test_a_terminal_that_hangs_up_does_not_harm_the_rank(job: Job, tmp_path: Path) -> None:
    code = f"ready()\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\nfor n in range(5000): print('line', n)"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        shim_command(["-u", "-c", PRELUDE + code]), env=job.environment(), stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    read_until(ours, b"ready")
    os.close(ours)
    (tmp_path / "go").touch()
    assert process.wait(10) == 0
    assert b"line 4999\n" in job.log().read_bytes()


# Many lines.


@contextmanager
def passed_on(tmp_path: Path) -> Iterator[tuple[list[Outlet], list[int]]]:
    """Two outlets of one rank, without a process around them, and where their output arrives."""
    pipes = [os.pipe() for _ in range(2)]
    outlets, log = Outlet.pair(*(writer for _, writer in pipes)), RankLog(str(tmp_path / "log"))
    ranks = [os.dup(outlet.rank_fd) for outlet in outlets]
    for outlet in outlets:
        outlet.pump(log)
        outlet.rank_fd = ranks.pop(0)
    try:
        yield outlets, [reader for reader, _ in pipes]
    finally:
        for outlet in outlets:
            outlet.stop()
            os.close(outlet.rank_fd)
        log.close(10)
        for descriptor in (each for pipe in pipes for each in pipe):
            os.close(descriptor)


def arrives(reader: int) -> bytes:
    assert select.select([reader], [], [], 10)[0]
    return os.read(reader, 65536)


def let_gather(outlet: Outlet, reader: int) -> None:
    """Two lines in a row: it is about to let more of them come together."""
    for line in (b"one\n", b"two\n"):
        os.write(outlet.rank_fd, line)
        assert arrives(reader) == line
    wait_for(lambda: True if not outlet._has_passed_on.is_set() else None)


def test_lines_that_come_often_leave_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_OFTEN_S", 60)
    with passed_on(tmp_path) as ((stdout, _), (reader, _)):
        monkeypatch.setattr(output, "_GATHER_S", 1)
        let_gather(stdout, reader)
        for line in (b"three\n", b"four\n"):
            os.write(stdout.rank_fd, line)
        assert arrives(reader) == b"three\nfour\n"


def test_lines_that_come_seldom_leave_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_OFTEN_S", 0)
    monkeypatch.setattr(output, "_GATHER_S", 60)
    with passed_on(tmp_path) as ((stdout, _), (reader, _)):
        for line in (b"one\n", b"two\n", b"three\n"):
            os.write(stdout.rank_fd, line)
            assert arrives(reader) == line


def test_an_error_comes_after_the_lines_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_OFTEN_S", 60)
    monkeypatch.setattr(output, "_GATHER_S", 60)
    with passed_on(tmp_path) as ((stdout, stderr), (out, errors)):
        let_gather(stdout, out)
        os.write(stdout.rank_fd, b"three\n")
        os.write(stderr.rank_fd, b"raised\n")
        assert (arrives(out), arrives(errors)) == (b"three\n", b"raised\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\nraised\n"


def test_a_rank_that_prints_much_does_not_wait_for_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_OFTEN_S", 60)
    monkeypatch.setattr(output, "_MUCH_IS_OVER_S", 60)
    monkeypatch.setattr(output, "_GATHER_S", 60)
    with passed_on(tmp_path) as ((stdout, _), (reader, _)):
        for piece in (b"x" * 5000, b"one\n", b"two\n", b"three\n"):
            os.write(stdout.rank_fd, piece)
            assert arrives(reader) == piece


def test_errors_arrive_where_the_reader_of_the_output_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_OFTEN_S", 60)
    with passed_on(tmp_path) as ((stdout, stderr), (out, errors)):
        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, 4096)
        let_gather(stdout, out)
        os.write(stdout.rank_fd, b"x" * 20000)
        os.write(stderr.rank_fd, b"raised\n")
        assert arrives(errors) == b"raised\n"


# The log on its own.


def test_a_log_on_a_folder_that_hangs_never_makes_anyone_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(os, "makedirs", lambda *_, **__: os.read(reader, 1))
    began = time.monotonic()
    log = RankLog(str(tmp_path / "log"))
    for _ in range(2000):
        log.put(b"x" * 100)
    log.close(0.1)
    assert time.monotonic() - began < 1
    os.write(writer, b"x")
    log._thread.join(5)
    assert not log._thread.is_alive()
    os.close(reader)
    os.close(writer)


def test_what_a_log_could_not_keep_is_counted_once_it_can_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, full = tmp_path / "log", [True]
    write_all = rank_log._write_all
    monkeypatch.setattr(rank_log, "_write_all", lambda descriptor, chunk: 0 if full[0] else write_all(descriptor, chunk))
    log = RankLog(str(path))
    for _ in range(3):
        log.put(b"x" * 10)
    wait_for(lambda: True if log._lost_before == 30 else None)
    full[0] = False
    log.put(b"later\n")
    log.close(5)
    assert path.read_bytes() == b"\n[rankpatrol: 30 bytes of this log could not be kept]\nlater\n"


def test_a_log_full_of_small_pieces_keeps_them_all_while_its_disk_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, goes_on = tmp_path / "log", threading.Event()
    write_all = rank_log._write_all
    monkeypatch.setattr(rank_log, "_write_all", lambda descriptor, chunk: write_all(descriptor, chunk) if goes_on.wait(10) else 0)
    log = RankLog(str(path))
    for number in range(100_000):
        log.put(b"%d\n" % number)
    goes_on.set()
    log.close(10)
    assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(100_000))


def test_who_asks_for_the_last_lines_does_not_wait_for_more_to_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr(rank_log, "_GATHER_S", 60)
    log = RankLog(str(path))
    for line in (b"one\n", b"two\n", b"three\n"):
        log.put(line)
        log.flush(10)
        assert path.read_bytes().endswith(line)
    log.put(b"four\n")
    log.close(10)
    assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert not log._thread.is_alive()


def test_what_came_too_fast_is_missing_where_it_would_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, goes_on, asked = tmp_path / "log", threading.Event(), threading.Event()
    write_all = rank_log._write_all

    def slowly(descriptor: int, chunk: bytes) -> int:
        asked.set()
        return write_all(descriptor, chunk) if goes_on.wait(10) else 0

    monkeypatch.setattr(rank_log, "_write_all", slowly)
    monkeypatch.setattr(rank_log, "_MOST_WAITING_BYTES", 10)
    log = RankLog(str(path))
    log.put(b"first ")
    assert asked.wait(10)
    for piece in (b"second ", b"missing ", b"too"):
        log.put(piece)
    goes_on.set()
    log.flush(10)
    log.put(b"last")
    log.close(10)
    assert path.read_bytes() == b"first second \n[rankpatrol: 11 bytes of this log could not be kept]\nlast"


def test_a_disk_that_fills_up_in_the_middle_of_a_write_loses_no_more_than_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, room = tmp_path / "log", [4]
    write = os.write

    def until_full(descriptor: int, chunk: bytes | memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, chunk[: room[0]])
        room[0] -= written
        return written

    log = RankLog(str(path))
    monkeypatch.setattr(os, "write", until_full)
    log.put(b"0123456789")
    log.flush(10)
    room[0] = 1000
    log.put(b"later")
    log.close(10)
    assert path.read_bytes() == b"0123\n[rankpatrol: 6 bytes of this log could not be kept]\nlater"


def test_a_fifo_in_the_logs_place_harms_nobody(job: Job) -> None:
    job.log().parent.mkdir(parents=True)
    os.mkfifo(job.log())
    with shimmed(job, "print('x' * 3_000_000)\nready(1)") as shim:
        assert len(rest_of(shim)) > 3_000_000
        assert shim.wait(10) == 0


def test_the_paused_process_is_gone_with_its_reader(job: Job) -> None:
    process, reader = paused_reader(job, "sys.stdout.write('x' * 60000)")
    assert process.wait(10) == 0
    stays = wait_for(lambda: writers_of(reader))
    with watched(*stays) as pidfds:
        os.close(reader)
        assert all(gone(pidfd) for pidfd in pidfds)


def writers_of(pipe: int) -> list[int] | None:
    """The other processes that have this pipe open."""
    name, found = Path(f"/proc/self/fd/{pipe}").readlink(), []
    for folder in (each for each in Path("/proc").iterdir() if each.name.isdigit() and int(each.name) != os.getpid()):
        try:
            if any(each.readlink() == name for each in (folder / "fd").iterdir()):
                found.append(int(folder.name))
        except OSError:
            continue
    return found or None


def test_a_name_that_would_steer_the_terminal_is_told_plainly() -> None:
    words = [sys.executable, "-I", "-S", str(QUICK_SHIM), "0", "{}", "\x1b[2J\u202enope"]
    done = subprocess.run(words, capture_output=True, check=False, timeout=20)
    assert done.returncode == 127
    assert done.stderr == b"rankpatrol: cannot start ?[2J?nope: No such file or directory\n"
