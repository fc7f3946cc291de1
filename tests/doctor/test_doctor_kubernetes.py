"""The way to Kubernetes, and the rights there, in doctor's rows."""

from pathlib import Path

import pytest

from rankpatrol.core.records import Missing
from rankpatrol.doctor import kubernetes
from rankpatrol.doctor.rows import Level

ALL = {f"{verb} {plural}": True for verb, _, plural in kubernetes.RIGHTS}


@pytest.mark.parametrize(
    ("seen", "level", "said"),
    [
        (Missing("kubeconfig"), Level.HINT, "its client is not installed"),
        (kubernetes.KubernetesFacts(way="pod", namespace="team", rights=Missing("no answer")), Level.UNKNOWN, "no answer"),
        (kubernetes.KubernetesFacts(way="kubeconfig", namespace="team", rights=Missing("no answer")), Level.HINT, "no answer"),
        (
            kubernetes.KubernetesFacts(way="pod", namespace="team", rights=ALL),
            Level.OK,
            "in namespace team: Jobs may be seen, requeued and ended",
        ),
        # The usual service account of a pod: no fault of anybody's.
        (
            kubernetes.KubernetesFacts(way="pod", namespace="team", rights={**ALL, "delete pods": False, "patch jobs": False}),
            Level.HINT,
            "no right to patch jobs, delete pods",
        ),
    ],
)
def test_rights_in_kubernetes_that_are_not_there_are_named_and_no_fault(
    seen: kubernetes.KubernetesFacts | Missing, level: Level, said: str
) -> None:
    (row,) = kubernetes.judge_kubernetes(seen)
    assert row.level is level
    assert said in row.found
    assert bool(row.fix) == (level is not Level.OK)


def test_where_no_way_leads_to_kubernetes_it_is_not_spoken_of(tmp_path: Path) -> None:
    assert kubernetes.look_at_kubernetes({"HOME": str(tmp_path)}) is None
    assert kubernetes.judge_kubernetes(None) == ()
