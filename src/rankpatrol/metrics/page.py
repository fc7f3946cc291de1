"""examples/prometheus/METRICS.md, made of the table: `python -m rankpatrol.metrics.page`. A test holds the two together."""

import sys

from rankpatrol.metrics.table import METRICS, PREFIX

_HEAD = """\
# Metrics

`rankpatrol run --metrics ADDR:PORT` serves them while the job runs; `--metrics-textfile DIR` writes them where node_exporter's textfile
collector reads them, several jobs a machine, and leaves each job's last word for a day; `rankpatrol metrics JOBDIR` prints them.
`rankpatrol hub --metrics ADDR:PORT` serves those of all jobs of a cluster, each job's last word for three minutes: there `job_id` is the
job's name among the nodes, and `rankpatrol_agent_…` is the hub's own process, the same with each job (`max by (node)`, never a sum).

Every sample bears `job_id` (the name of the job directory; `job` is Prometheus's own label) and `node`. What is not known has no sample:
absent is neither healthy nor 0. Ages are `time()` minus a timestamp. An incident that people are not told of is not open here either.

In this folder: `prometheus.yml` and `alertmanager.yml` to begin with, `rules.yml` with its tests (`promtool test rules rules_test.yml`),
and `grafana-dashboard.json`, which asks for the recording rules of `rules.yml`.

| metric | kind | labels | what it says |
|---|---|---|---|
"""


def metrics_page() -> str:
    """The page."""
    rows = (f"| `{PREFIX}{row.name}` | {row.kind} | {', '.join(f'`{label}`' for label in row.labels)} | {row.help} |\n" for row in METRICS)
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
