"""A port that serves, that is taken, that is held open; and a scrape that nobody waits for."""

import contextlib
import queue
import socket
import threading
import urllib.error
import urllib.request

import pytest
from readings import reading

from rankpatrol.core.errors import UsageProblem
from rankpatrol.metrics.address import Address
from rankpatrol.metrics.serving import MetricsServer

HERE = "127.0.0.1"


@contextlib.contextmanager
def served(source, address=f"{HERE}:0"):
    said = queue.Queue()
    server = MetricsServer(Address.parse(address), source, lambda what, style: said.put((what, style)))
    try:
        yield said
    finally:
        server.close()


def url_of(said):
    what, style = said.get(timeout=10)
    assert style == "plain", what
    return what.removeprefix("metrics: ")


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_each_scrape_gets_the_reading_of_that_moment():
    latest = [reading(step=1)]
    with served(lambda: latest) as said:
        url = url_of(said)
        assert 'rankpatrol_job_steps{job_id="train",node="n0"} 1.0' in get(url)
        latest[0] = reading(step=2)
        assert 'rankpatrol_job_steps{job_id="train",node="n0"} 2.0' in get(url)


def test_before_the_first_round_there_is_nothing_to_tell():
    with served(lambda: ()) as said:
        assert get(url_of(said)) == ""


def test_only_reading_is_possible():
    with served(lambda: ()) as said:
        url = url_of(said)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(url, data=b"x", method="POST"), timeout=10)


def test_a_port_in_use_is_told_once_and_taken_when_it_is_free(monkeypatch):
    monkeypatch.setattr("rankpatrol.metrics.serving._TRY_AGAIN_S", 0.05)
    with socket.create_server((HERE, 0)) as other:
        port = other.getsockname()[1]
        context = served(lambda: [reading()], f"{HERE}:{port}")
        said = context.__enter__()
        what, style = said.get(timeout=10)
        assert style == "alert"
        assert f"{HERE}:{port}: Address already in use. The patrol goes on" in what
    try:
        assert url_of(said) == f"http://{HERE}:{port}/metrics", "told once, however often it was tried"
        assert "rankpatrol_job_info" in get(f"http://{HERE}:{port}/metrics")
    finally:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 300])
def test_an_address_that_is_not_ours_is_told(host):
    with served(lambda: (), f"{host}:9464") as said:
        what, style = said.get(timeout=15)
        assert (style, what.startswith(f"metrics are not served: {host}:9464: ")) == ("alert", True)


def test_scrapers_that_hold_on_keep_nobody_else_out_for_ever_and_take_few_threads(monkeypatch):
    monkeypatch.setattr("rankpatrol.metrics.serving._Handler.timeout", 0.5)
    with served(lambda: [reading()]) as said:
        url = url_of(said)
        place = (HERE, int(url.split(":")[2].split("/")[0]))
        before = threading.active_count()
        held = [socket.create_connection(place, timeout=5) for _ in range(50)]
        with contextlib.suppress(OSError):
            for each in held:
                each.settimeout(10)
                assert each.recv(1) == b"", "sent away at once, or after its time"
        assert threading.active_count() - before <= 8
        for each in held:
            each.close()
        assert "rankpatrol_job_info" in get(url)


def test_a_scrape_that_is_under_way_holds_no_other_up():
    entered, go_on = threading.Event(), threading.Event()
    first = [True]

    def slow():
        if first.pop() if first else False:
            entered.set()
            go_on.wait(10)
        return [reading()]

    with served(slow) as said:
        url = url_of(said)
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(get(url)), daemon=True).start()
        assert entered.wait(10)
        assert "rankpatrol_job_info" in get(url)
        assert answers.empty()
        go_on.set()
        assert "rankpatrol_job_info" in answers.get(timeout=10)


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:9464", "127.0.0.1", 9464), ("[::1]:0", "::1", 0), ("node-3.local:65535", "node-3.local", 65535)]
)
def test_an_address_is_read_and_shown_as_it_was_written(text, host, port):
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "h:65536", "::1:9464", "[h]:1", "a b:1", "h:-1", "h:٣"]
)
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(UsageProblem) as problem:
        Address.parse(text)
    assert "127.0.0.1:9464" in problem.value.help
