"""A real Prometheus scrapes a real collector, its rules find a hang, a real Alertmanager tells a person; and every panel's query runs."""

import contextlib
import http.server
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from readings import full, reading
from test_metrics_examples import EXAMPLES, dashboard, queries

from rankpatrol.metrics.address import Address
from rankpatrol.metrics.serving import MetricsServer

NEEDS = ("prometheus", "prometheus-alertmanager")
MISSING = [name for name in NEEDS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} not installed (apt-get install --no-install-recommends {' '.join(NEEDS)})"
    ),
]
HERE = "127.0.0.1"


def free_port():
    with socket.create_server((HERE, 0)) as held:
        return held.getsockname()[1]


@contextlib.contextmanager
def webhook():
    """Where Alertmanager sends its messages to; a queue of them."""
    heard = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((HERE, 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield server.server_port, heard
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def started(folder, name, *words):
    """A daemon of its own session, and its end."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([name, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def ready(url, process, log):
    """Waits for the daemon's own word that it is ready."""
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


def asked(port, query):
    """An instant query's result. Raises where Prometheus does not take the query."""
    words = urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(f"http://{HERE}:{port}/api/v1/query?{words}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as problem:
        pytest.fail(f"{query}: {problem.read().decode()}")


def until_found(port, query):
    until = time.monotonic() + 40
    while not (found := asked(port, query)):
        assert time.monotonic() < until, query
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def prometheus(folder, targets, alertmanager):
    port, rules = free_port(), folder / "rules.yml"
    shutil.copy(EXAMPLES / "rules.yml", rules)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{HERE}:{alertmanager}"]}]}]},
        "scrape_configs": [{"job_name": "rankpatrol", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    words = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={HERE}:{port}")
    with started(folder, "prometheus", *words) as process:
        ready(f"http://{HERE}:{port}/-/ready", process, folder / "prometheus.log")
        yield port


@contextlib.contextmanager
def alertmanager(folder, hook_port):
    port = free_port()
    text = (
        (EXAMPLES / "alertmanager.yml")
        .read_text()
        .replace("127.0.0.1:9099", f"{HERE}:{hook_port}")
        .replace("group_wait: 10s", "group_wait: 1s")
    )
    (folder / "alertmanager.yml").write_text(text)
    words = (f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts", f"--web.listen-address={HERE}:{port}")
    with started(folder, "prometheus-alertmanager", *words, "--cluster.listen-address=") as process:
        ready(f"http://{HERE}:{port}/-/ready", process, folder / "prometheus-alertmanager.log")
        yield port


@contextlib.contextmanager
def collector(latest):
    said = queue.Queue()
    server = MetricsServer(Address(HERE, 0), lambda: latest, lambda what, style: said.put(what))
    try:
        yield urllib.parse.urlsplit(said.get(timeout=10).removeprefix("metrics: ")).netloc
    finally:
        server.close()


def in_now(made):
    """The same reading, as if it were taken now."""
    now_s = time.time()
    recent = tuple((at_s - made.now.at_unix_s + now_s, step) for at_s, step in made.tally.recent)
    tally = msgspec.structs.replace(made.tally, recent=recent)
    return msgspec.structs.replace(made, tally=tally, now=msgspec.structs.replace(made.now, at_unix_s=now_s))


def test_a_hang_comes_to_a_person_by_prometheus_and_alertmanager(tmp_path: Path):
    latest = [in_now(reading())]
    with (
        webhook() as (hook_port, heard),
        collector(latest) as target,
        alertmanager(tmp_path, hook_port) as am_port,
        prometheus(tmp_path, [target], am_port) as port,
    ):
        until_found(port, 'rankpatrol_job_info{job_id="train", node="n0"}')
        assert asked(port, "ALERTS") == []
        (healthy,) = asked(port, 'rankpatrol_rank_state{rank="3"}')
        assert (healthy["metric"]["job"], healthy["metric"]["node"], healthy["metric"]["state"]) == ("rankpatrol", "n1", "training")
        latest[0] = in_now(full()[0])
        hangs: list[dict[str, Any]] = []
        while not hangs:  # alone, or beside others of the same job: whatever fires within a second comes in one message
            message = heard.get(timeout=60)
            hangs = [alert for alert in message["alerts"] if alert["labels"]["alertname"] == "RankpatrolHang"]
        assert (message["status"], hangs[0]["status"]) == ("firing", "firing")
        assert hangs[0]["labels"]["severity"] == "critical"
        assert message["groupLabels"] == {"job_id": "train"}
        assert hangs[0]["annotations"]["summary"] == "train hangs: rank_blocked (supported)"
        assert until_found(port, 'ALERTS{alertname="RankpatrolHang", alertstate="firing"}')


def test_every_query_of_the_dashboard_runs_on_a_job_in_trouble(tmp_path: Path):
    with collector([in_now(each) for each in full()]) as target, prometheus(tmp_path, [target], free_port()) as port:
        until_found(port, "job_id:rankpatrol_goodput_ratio:min")
        until_found(port, "job_id_node:rankpatrol_agent_cpu_seconds:rate5m")
        until_found(port, "rate(rankpatrol_alerts_total[1m])")
        empty = []
        for query in queries(dashboard()):
            plain = query.replace("$__rate_interval", "1m").replace("$job_id", ".*").replace("$node", ".*")
            if not asked(port, plain) and not plain.startswith("ALERTS"):
                empty.append(plain)
        assert empty == []
