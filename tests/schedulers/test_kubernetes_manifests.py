"""examples/kubernetes: each manifest is what the API takes, without a field that it would drop in silence; and the rights are the least."""

import copy
from pathlib import Path

import pytest
import yaml
from kubernetes import client
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rankpatrol.cli.main import cli
from rankpatrol.schedulers.kubernetes_words import KINDS

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "kubernetes"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class FailurePolicy(_Strict):
    max_restarts: int = 0


class Network(_Strict):
    enable_dns_hostnames: bool | None = Field(default=None, alias="enableDNSHostnames")


class ReplicatedJob(_Strict):
    name: str
    replicas: int = 1
    template: dict


class JobSetSpec(_Strict):
    """jobset.x-k8s.io/v1alpha2, as far as the example goes; its Jobs are held against the client's own type."""

    replicated_jobs: list[ReplicatedJob]
    network: Network | None = None
    failure_policy: FailurePolicy | None = None


class JobSet(_Strict):
    api_version: str
    kind: str
    metadata: dict
    spec: JobSetSpec


TYPES = {
    "Job": client.V1Job,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
    "ServiceAccount": client.V1ServiceAccount,
    "DaemonSet": client.V1DaemonSet,
    "Deployment": client.V1Deployment,
    "Service": client.V1Service,
    "PersistentVolumeClaim": client.V1PersistentVolumeClaim,
}
NAMES = ("job.yaml", "jobset.yaml", "rbac.yaml", "resident.yaml")
# Mappings whose keys are the user's own.
OWN_KEYS = frozenset({"limits", "requests", "labels", "annotations", "matchLabels", "selector", "nodeSelector"})


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def check(document: dict) -> None:
    if document["kind"] == "JobSet":
        for part in JobSet.model_validate(document).spec.replicated_jobs:
            client.V1JobTemplateSpec.model_validate(part.template)
        client.V1ObjectMeta.model_validate(document["metadata"])
    else:
        TYPES[document["kind"]].model_validate(document)


def paths(thing: object, path: tuple = ()) -> list[tuple]:
    """The way to each mapping of a document, but for those whose keys are the user's own."""
    if isinstance(thing, list):
        return [each for index, part in enumerate(thing) for each in paths(part, (*path, index))]
    if not isinstance(thing, dict) or (path and path[-1] in OWN_KEYS and "matchLabels" not in thing):
        return []
    return [path, *(each for key, part in thing.items() for each in paths(part, (*path, key)))]


ALL = [(name, index) for name in NAMES for index in range(len(documents(name)))]


def test_no_manifest_is_left_out():
    assert sorted(path.name for path in EXAMPLES.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize(("name", "index"), ALL)
def test_a_manifest_has_the_types_fields_alone(name, index):
    check(documents(name)[index])


@pytest.mark.parametrize(("name", "index"), ALL)
def test_a_misspelt_field_at_any_depth_is_refused(name, index):
    document = documents(name)[index]
    for path in paths(document):
        spoilt = copy.deepcopy(document)
        part = spoilt
        for key in path:
            part = part[key]
        part["nosuchfield"] = 1
        with pytest.raises(ValidationError):
            check(spoilt)


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_the_training_runs_under_the_patrol_without_a_token_and_without_rights(name):
    (document,) = documents(name)
    spec = document["spec"]
    if document["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert not any(pod.get(word) for word in ("hostPID", "hostNetwork", "hostIPC"))
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["command"][:2] == ["rankpatrol", "run"]
    run = cli.get_command(None, "run")
    options = {word for parameter in run.params for word in parameter.opts}
    words = container["command"][2 : container["command"].index("torchrun")]
    assert {word.partition("=")[0] for word in words} <= options


def test_what_may_end_may_do_no_more_than_it_asks_of_the_api():
    end, look = (document["rules"] for document in documents("rbac.yaml")[:2])
    wanted = {(kind.group, kind.plural): {"get", "patch", "delete"} for word, kind in KINDS.items() if word != "pod"}
    wanted["batch", "jobs"].add("list")
    wanted["", "pods"] = {"get", "list", "delete"}
    assert rights(end) == wanted
    assert rights(look) == {what: verbs & {"get", "list"} for what, verbs in wanted.items()}


def rights(rules: list[dict]) -> dict[tuple[str, str], set[str]]:
    return {(group, plural): set(rule["verbs"]) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}
