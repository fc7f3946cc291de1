"""The scripts of examples/slurm as a node's Prolog, Epilog and HealthCheckProgram, run by a real slurmd: for drill_slurm.py.

`rankpatrol` is the real one, until a scene says that it be certain of something: then one that answers as that does, with exit code 2.
"""

import os
import sys
from pathlib import Path

from sites import wait_for
from slurm_cluster import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "slurm"
SCRIPTS = {"prolog": "prolog.sh", "epilog": "epilog.sh", "health": "health_check.sh"}
# As the scripts' own first lines say, but for the paths and a shorter interval.
SETTINGS = """
Prolog=BASE/bin/prolog
Epilog=BASE/bin/epilog
HealthCheckProgram=BASE/bin/health
HealthCheckInterval=10
HealthCheckNodeState=IDLE,CYCLE
PrologEpilogTimeout=60
"""
WHO = """#!/bin/bash
# slurmd starts them with next to nothing in their environment.
export CALLED={name} PATH={base}/bin:/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF={base}/slurm.conf PYTHONPATH={pythonpath}
exec {script}
"""
RANKPATROL = """#!/bin/bash
if [ -e {base}/certain/$CALLED ]; then echo "$CALLED 2" >> {base}/asked; exit 2; fi
{python} -m rankpatrol "$@"
code=$?
echo "$CALLED $code" >> {base}/asked
exit $code
"""


def prepare(cluster: Cluster) -> None:
    """Before its slurmd starts: it runs the health check at once."""
    (cluster.base / "bin").mkdir()
    (cluster.base / "certain").mkdir()
    facts = {"base": cluster.base, "python": sys.executable, "pythonpath": os.environ.get("PYTHONPATH", "")}
    texts = {name: WHO.format(name=name, script=EXAMPLES / script, **facts) for name, script in SCRIPTS.items()}
    for name, text in {**texts, "rankpatrol": RANKPATROL.format(**facts)}.items():
        path = cluster.base / "bin" / name
        path.write_text(text)
        path.chmod(0o755)


def node_scripts(cluster: Cluster) -> str:
    """Not knowing drains nobody; what is certain does, each with the reason by which an administrator finds out."""
    said = []
    job = cluster.submit("sleep 1", "-N1")
    cluster.await_state(job, "COMPLETED")
    wait_for(lambda: {"prolog", "epilog", "health"} <= _asked(cluster).keys(), 90)
    assert "2" not in _asked(cluster).values(), _asked(cluster)
    assert _node(cluster)[0] == "idle", _node(cluster)
    said.append(f"real answers {_asked(cluster)} drain nobody")
    for name, reason in (("prolog", "Prolog error"), ("epilog", "Epilog error"), ("health", "rankpatrol: GPU memory held by a dead job")):
        (cluster.base / "certain" / name).touch()
        job = cluster.queue("sleep 1", "-N1") if name != "health" else ""
        wait_for(lambda: _node(cluster)[0].startswith("drain"), 90)
        assert reason in _node(cluster)[1], _node(cluster)
        said.append(f"{name} -> {_node(cluster)[1]!r}" + (f", job {cluster.state(job)}" if job else ""))
        (cluster.base / "certain" / name).unlink()
        cluster.slurm("scancel", *([job] if job else ["--user=root"]), check=False)
        cluster.slurm("scontrol", "update", f"NodeName={cluster.node(1)}", "State=RESUME")
        wait_for(lambda: _node(cluster)[0] == "idle", 60)
    return "; ".join(said)


def _asked(cluster: Cluster) -> dict[str, str]:
    """The last answer to each of them."""
    path = cluster.base / "asked"
    return dict(line.split(" ", 1) for line in path.read_text().splitlines()) if path.exists() else {}


def _node(cluster: Cluster) -> tuple[str, str]:
    """The node's state and the reason it has."""
    state, _, reason = cluster.slurm("sinfo", "-h", "-N", "-n", cluster.node(1), "-o", "%T|%E").partition("|")
    return state, reason
