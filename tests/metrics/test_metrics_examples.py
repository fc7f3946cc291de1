"""The rules, their tests and the dashboard speak of metrics that there are, and Prometheus's own tools agree with them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from readings import full, names, samples

from rankpatrol.metrics.collector import exposition
from rankpatrol.metrics.page import metrics_page

EXAMPLES = Path(__file__).parents[2] / "examples" / "prometheus"
DASHBOARD = EXAMPLES / "grafana-dashboard.json"
# A recording's name has colons in it (level:metric:operation).
_NAME = re.compile(r"(?<![:\w])rankpatrol_[a-z_]+(?![:\w])")
_RECORDED = re.compile(r"\b[a-z_]+:rankpatrol_[a-z_]+:[a-z0-9]+\b")


def without_comments(path):
    return re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE)


def dashboard():
    return json.loads(DASHBOARD.read_text())


def queries(board):
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in board["annotations"]["list"])


@pytest.mark.parametrize("name", ["rules.yml", "rules_test.yml", "grafana-dashboard.json"])
def test_every_metric_that_is_named_is_exported(name):
    named = set(_NAME.findall(without_comments(EXAMPLES / name)))
    assert len(named) > 10
    assert named <= names(samples(*full()))


def test_every_metric_has_its_row_on_the_page():
    assert (EXAMPLES / "METRICS.md").read_text() == metrics_page(), "python -m rankpatrol.metrics.page > examples/prometheus/METRICS.md"


def test_every_recording_that_is_named_is_a_rule():
    text = (EXAMPLES / "rules.yml").read_text()
    recorded = set(re.findall(r"- record: (\S+)", text))
    asked = {found for query in queries(dashboard()) for found in _RECORDED.findall(query)}
    assert asked
    assert asked <= recorded


def test_labels_that_queries_choose_by_are_exported():
    exported = {label for _, labels in samples(*full()) for label, _ in labels}
    for text in (*queries(dashboard()), (EXAMPLES / "rules.yml").read_text()):
        for choice in re.findall(r"(?<!:)rankpatrol_[a-z_]+\{([^}]*)\}", text):
            assert set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", choice)) <= exported, choice


def test_every_alert_has_a_test():
    alerts = set(re.findall(r"- alert: (\S+)", (EXAMPLES / "rules.yml").read_text()))
    assert alerts == set(re.findall(r"alertname: (\S+)", (EXAMPLES / "rules_test.yml").read_text()))


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_name_no_data_source_of_ours():
    board = dashboard()
    assert {panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"} == {"${datasource}"}
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "job_id", "node"]


def tool(*words):
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed (apt-get install --no-install-recommends prometheus prometheus-alertmanager)")
    return subprocess.run(words, cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout(70)
@pytest.mark.parametrize(
    "words",
    [
        ("promtool", "check", "rules", "rules.yml"),
        ("promtool", "test", "rules", "rules_test.yml"),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
    ids=" ".join,
)
def test_prometheus_own_tools_take_them(words):
    done = tool(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_own_tool_finds_nothing_to_say_of_the_exposition():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install --no-install-recommends prometheus)")
    done = subprocess.run(["promtool", "check", "metrics"], input=exposition(full()), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
