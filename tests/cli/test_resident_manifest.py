"""examples/kubernetes/resident.yaml: what it starts exists, and it has the least rights that do."""

from pathlib import Path

import pytest
import yaml

from rankpatrol.cli.main import cli

MANIFEST = Path(__file__).parent.parent.parent / "examples" / "kubernetes" / "resident.yaml"
DOCUMENTS = {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}
PODS = {kind: DOCUMENTS[kind]["spec"]["template"]["spec"] for kind in ("DaemonSet", "Deployment")}


@pytest.mark.parametrize(("kind", "name"), [("DaemonSet", "agent"), ("Deployment", "hub")])
def test_the_commands_are_ours_and_so_are_their_options(kind, name):
    (container,) = PODS[kind]["containers"]
    assert container["command"][:2] == ["rankpatrol", name]
    options = {word for parameter in cli.get_command(None, name).params for word in parameter.opts}
    assert {word.partition("=")[0] for word in container["command"][2:]} <= options


@pytest.mark.parametrize("kind", PODS)
def test_nobody_has_a_token_or_more_rights_than_needed(kind):
    pod = PODS[kind]
    assert pod["automountServiceAccountToken"] is False
    assert not pod.get("hostNetwork")
    assert not pod.get("hostIPC")
    assert pod.get("hostPID", False) is (kind == "DaemonSet"), "the ranks are processes of other pods"
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) == (["SYS_PTRACE", "DAC_READ_SEARCH"] if kind == "DaemonSet" else [])
        assert not context.get("privileged")


@pytest.mark.parametrize("kind", PODS)
def test_each_mount_has_its_volume_and_each_volume_is_mounted(kind):
    pod = PODS[kind]
    mounted = {mount["name"] for each in (*pod["containers"], *pod.get("initContainers", ())) for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_selectors_and_ports_meet():
    for kind in PODS:
        spec = DOCUMENTS[kind]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    service, (hub,) = DOCUMENTS["Service"], PODS["Deployment"]["containers"]
    assert service["spec"]["selector"] == DOCUMENTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {port["name"] for port in hub["ports"]}
    at = f"tls://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:4222"
    for pod in PODS.values():
        assert f"--exchange={at}" in pod["containers"][0]["command"]


def test_there_is_one_hub_and_never_two_at_once():
    assert DOCUMENTS["Deployment"]["spec"]["replicas"] == 1
    assert DOCUMENTS["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
