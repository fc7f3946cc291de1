"""Which exception ended a rank, and whether it is only another rank's echo."""

import pytest

from rankpatrol.formats.failures import LoaderDeath, fatal_words, last_failure

OWN = (
    "step 12/120 loss 0.016 (0.20 s)",
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 120, in <module>',
    "    main()",
    '  File "/home/u/model.py", line 41, in forward',
    '    raise ValueError("bad batch")',
    "ValueError: bad batch",
)
CLOSED = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 96, in train',
    "    loss.backward()",
    '  File "/env/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward',
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17842.",
)


def test_the_exception_its_message_and_its_line_are_read():
    found = last_failure(OWN)
    assert (found.exception, found.message, found.place, found.echo) == ("ValueError", "bad batch", "forward (model.py:41)", False)


def test_a_closed_connection_is_an_echo():
    assert last_failure(CLOSED).echo


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [.../gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7554: Connection reset by peer",
        "RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete",
    ],
)
def test_what_gloo_says_of_a_silent_or_dead_peer_is_an_echo(text):
    assert last_failure(("Traceback (most recent call last):", text)).echo


@pytest.mark.parametrize(
    "last",
    [
        "torch.distributed.DistNetworkError: Connection reset by peer",
        "RuntimeError: Broken pipe. This may indicate a possible application crash on rank 0 or a network set up issue.",
        "RuntimeError: Connection reset by peer",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Write error [10.0.0.2]:4455: Broken pipe",
        "torch.distributed.DistBackendError: [4] is setting up NCCL communicator, but store->get('0') got error: Connection reset by peer",
    ],
)
def test_a_broken_connection_of_a_transport_is_an_echo(last):
    found = last_failure((*OWN[1:5], last))
    assert found.echo


def test_a_broken_connection_is_an_echo_where_it_was_raised_inside_torch_distributed():
    frame = '  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4811, in barrier'
    assert last_failure((*CLOSED[:2], frame, "OSError: [Errno 32] Broken pipe")).echo


@pytest.mark.parametrize(
    "last",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: the upload failed: Connection reset by peer",
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
    ],
)
def test_a_broken_connection_of_the_ranks_own_is_no_echo(last):
    elastic = (
        '  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper'
    )
    assert not last_failure((OWN[1], elastic, *OWN[2:5], last)).echo
    assert not last_failure((f"WARNING s3: {last}", "bye")).echo


HANDLER = '  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler'


def test_a_loader_process_that_died_is_no_echo_and_where_the_news_arrived_is_no_place():
    found = last_failure((*CLOSED[:4], HANDLER, "RuntimeError: DataLoader worker (pid 13448) is killed by signal: Killed. "))
    assert (found.echo, found.place, found.loader) == (False, None, LoaderDeath(pid=13448, signal="Killed"))


def test_a_loader_process_that_is_missed_later_died_of_the_signal_that_was_told_before():
    killed = (*CLOSED[:4], HANDLER, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
    later = "The above exception was the direct cause of the following exception:"
    missed = (*OWN[1:3], "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly")
    assert last_failure((*killed, later, *missed)).loader == LoaderDeath(pid=7, signal="Segmentation fault")
    assert last_failure(missed).loader == LoaderDeath(pid=None, signal=None)


def test_the_last_traceback_counts():
    assert last_failure((*CLOSED, *OWN)).exception == "ValueError"
    assert last_failure((*OWN, *CLOSED)).echo


def test_a_dotted_exception_and_a_rank_prefix_are_read():
    lines = (
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/a.py", line 3, in f',
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory.",
    )
    found = last_failure(lines)
    assert (found.exception, found.place) == ("torch.OutOfMemoryError", "f (a.py:3)")


def test_of_a_loaders_exception_the_loaders_own_line_counts():
    """As torch 2.13 prints it in the rank."""
    lines = (
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/env/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise',
        "[rank0]:     raise exception",
        "[rank0]: RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
        "[rank0]: Original Traceback (most recent call last):",
        '[rank0]:   File "/home/u/train.py", line 37, in __getitem__',
        "[rank0]:     rows = torch.frombuffer(data).view(-1, FEATURES + 1)",
        "[rank0]:            ^^^^^^^^^^^^^^^^^^^^^^",
        "[rank0]: RuntimeError: shape '[-1, 65]' is invalid for input of size 2078",
    )
    assert last_failure(lines).place == "__getitem__ (train.py:37)"


def test_lines_that_torchrun_has_marked_are_read():
    lines = (
        "[default1]:[rank1]: Traceback (most recent call last):",
        '[default1]:[rank1]:   File "/a.py", line 3, in f',
        "[default1]:[rank1]: KeyError: 7",
    )
    found = last_failure(lines)
    assert (found.exception, found.place) == ("KeyError", "f (a.py:3)")


@pytest.mark.parametrize(
    ("last", "exception", "message"),
    [
        ("CorruptShard: shard-00010.tar: bad magic", "CorruptShard", "shard-00010.tar: bad magic"),
        ("queue.Empty", "queue.Empty", ""),
        ("_queue.Empty", "_queue.Empty", ""),
        ("zipfile.BadZipFile: File is not a zip file", "zipfile.BadZipFile", "File is not a zip file"),
        ("subprocess.TimeoutExpired: Command 'x' timed out", "subprocess.TimeoutExpired", "Command 'x' timed out"),
        ("concurrent.futures.process.BrokenProcessPool: A process", "concurrent.futures.process.BrokenProcessPool", "A process"),
        ("zlib.error: Error -3 while decompressing data", "zlib.error", "Error -3 while decompressing data"),
        ("main.<locals>.Late: 7", "main.<locals>.Late", "7"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank2]: ", "[default2]:[rank2]: ", "[default2]:"])
def test_an_exception_may_have_any_name(last, exception, message, prefix):
    lines = (*OWN[1:5], '    raise CorruptShard(f"{name}: bad magic")', "          ^^^^^^^^^^^", last)
    found = last_failure(("step 12: fine", *(f"{prefix}{line}" for line in lines), "done: nothing"))
    assert (found.exception, found.message, found.place) == (exception, message, "forward (model.py:41)")


def test_a_line_of_the_log_between_a_traceback_and_its_end_is_no_exception():
    assert last_failure((*OWN[1:5], "WARNING: retrying", OWN[-1])).exception == "ValueError"
    assert last_failure((*OWN[1:5], "step 12/120 loss 0.016", "Loss: 0.2", OWN[-1])).exception == "ValueError"
    assert last_failure((*OWN[1:5], "loss: 0.2", OWN[-1])).exception == "ValueError"


def test_a_script_that_does_not_parse_has_a_place_and_no_traceback():
    """As Python 3.11 prints it of the script that it was given."""
    found = last_failure(('  File "/home/u/train.py", line 2', "    def f(:", "          ^", "SyntaxError: invalid syntax"))
    assert (found.exception, found.message, found.place) == ("SyntaxError", "invalid syntax", "<module> (train.py:2)")


def test_a_module_that_does_not_parse_is_the_place_and_not_its_import():
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 1, in <module>',
        "    import model",
        '  File "/home/u/model.py", line 7',
        "    x = = 1",
        "IndentationError: unexpected indent",
    )
    assert last_failure(lines).place == "<module> (model.py:7)"


def test_a_log_without_a_traceback_says_nothing():
    found = last_failure(("step 1", "step 2"))
    assert (found.exception, found.place, found.echo) == (None, None, False)


FAULT = (
    "step 9 loss 0.046",
    "Fatal Python error: Segmentation fault",
    "",
    "Thread 0x00007fc041611b79 (most recent call first):",
    '  File "/usr/lib/python3.11/threading.py", line 320 in wait',
    "",
    "Current thread 0x00007fc041611b80 (most recent call first):",
    '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
    '  File "/home/u/train.py", line 10 in kernel',
    '  File "/home/u/train.py", line 28 in <module>',
    "",
    "Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)",
)


@pytest.mark.parametrize("prefix", ["", "[default2]:"])
def test_what_faulthandler_wrote_of_a_signal_is_read(prefix):
    found = fatal_words(tuple(prefix + line for line in FAULT))
    assert found.words == "Fatal Python error: Segmentation fault"
    assert [(frame.name, frame.line) for frame in found.frames] == [("string_at", 519), ("kernel", 10), ("<module>", 28)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ("terminate called after throwing an instance of 'std::runtime_error'", "  what():  cache index corrupt"),
            "terminate called after throwing an instance of 'std::runtime_error' what(): cache index corrupt",
        ),
        (("terminate called without an active exception",), "terminate called without an active exception"),
        (("python3: kernel.cpp:12: void f(): Assertion `n > 0' failed.",), "python3: kernel.cpp:12: void f(): Assertion `n > 0' failed."),
        (("*** buffer overflow detected ***: terminated",), "*** buffer overflow detected ***: terminated"),
        (("free(): double free detected in tcache 2",), "free(): double free detected in tcache 2"),
    ],
)
def test_what_was_said_before_an_abort_is_read(lines, words):
    assert fatal_words(("step 9", *lines, "")).words == words


def test_a_log_without_such_words_has_none():
    assert fatal_words(("step 1", "free GPU memory: 3 GB", "corrupted sample 7 left out", "loss 0.2")) is None
