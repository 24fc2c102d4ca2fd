"""What clusters are told is valid to the last field, pinned, without secrets, and gives away no more than it must."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kuberay
import kubernetes_validate
import pytest
import ray
import yaml
from jsonschema import Draft7Validator
from manifests import INFRA, PINNED, dangers, manifests, pods

import specdiff
from pipeline import meters
from pipeline.errors import UsageError
from pipeline.jobfile import dotted, refuse_secrets

KUBERNETES = "1.34"
OBJECTS = manifests()
PODS = {f"{name}{at}": (meta, spec) for name, each in OBJECTS.items() for at, meta, spec in pods(each)}
YAML_FILES = sorted(path for path in INFRA.rglob("*") if path.suffix in {".yaml", ".yml"})
# Maps whose keys are the user's.
FREE = {"labels", "annotations", "matchLabels", "requests", "limits", "rayStartParams", "driver"}


def _problems(manifest: dict[str, Any]) -> list[str]:
    if manifest["apiVersion"].startswith("ray.io/"):
        return kuberay.problems(manifest)
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def _keys(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all keys that Kubernetes names."""
    if isinstance(node, dict) and not (at and at[-1] in FREE):
        for key, value in node.items():
            yield (*at, key)
            yield from _keys(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _keys(value, (*at, index))


def _misspelt(manifest: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = copy.deepcopy(manifest)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[f"{path[-1]}s"] = node.pop(path[-1])
    return changed


@pytest.mark.parametrize("name", OBJECTS)
def test_manifests_are_valid(name: str) -> None:
    assert _problems(OBJECTS[name]) == []


@pytest.mark.parametrize("name", OBJECTS)
def test_every_misspelt_field_is_caught(name: str) -> None:
    manifest = OBJECTS[name]
    # Of the ray objects the RayJob stands for both: their specs are one.
    paths = [
        path
        for path in _keys(manifest)
        if path[0] not in {"apiVersion", "kind"} and path[:2] != ("spec", "jobTemplate")
    ]
    if manifest["kind"] == "CronJob":
        paths = [path for path in _keys(manifest) if path[0] not in {"apiVersion", "kind"}]
    assert paths
    missed = [path for path in paths if not _problems(_misspelt(manifest, path))]
    assert missed == []


def test_the_nightly_run_is_the_one_run() -> None:
    nightly = next(each for each in OBJECTS.values() if each["kind"] == "RayCronJob")
    once = next(each for each in OBJECTS.values() if each["kind"] == "RayJob")
    assert nightly["spec"]["jobTemplate"] == once["spec"]
    plain = next(each for each in OBJECTS.values() if each["kind"] == "CronJob")
    assert all(plain["spec"][key] == nightly["spec"][key] for key in ("schedule", "timeZone"))


def test_a_run_ends_and_its_cluster_with_it() -> None:
    spec = next(each for each in OBJECTS.values() if each["kind"] == "RayJob")["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert all(spec[key] > 0 for key in ("ttlSecondsAfterFinished", "backoffLimit", "activeDeadlineSeconds"))
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == ray.__version__ == _locked("ray")
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] == 0 < workers["maxReplicas"]
    assert workers["template"]["spec"]["tolerations"]


@pytest.mark.parametrize("name", PODS)
def test_pods_are_harmless(name: str) -> None:
    assert dangers(PODS[name][1]) == []


def _plant(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def plant(spec: dict[str, Any]) -> None:
        *path, last = where.split(".")
        node: Any = spec
        for key in path:
            node = node[int(key)] if key.isdigit() else node.setdefault(key, {})
        node[last] = value

    return plant


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_plant("hostNetwork", True), "hostNetwork"),
        (_plant("securityContext.runAsNonRoot", False), "root"),
        (_plant("securityContext.runAsUser", 0), "root"),
        (_plant("securityContext.seccompProfile", {"type": "Unconfined"}), "seccomp"),
        (_plant("volumes", [{"name": "node", "hostPath": {"path": "/"}}]), "node's"),
        (_plant("containers.0.image", "specdiff:latest"), "not pinned"),
        (_plant("containers.0.image", "specdiff"), "not pinned"),
        (_plant("containers.0.securityContext.privileged", True), "privileges"),
        (_plant("containers.0.securityContext.capabilities", {"add": ["NET_ADMIN"]}), "capabilities"),
        (_plant("containers.0.securityContext.readOnlyRootFilesystem", False), "root"),
        (_plant("containers.0.resources.limits", {}), "limits of memory"),
        (_plant("containers.0.ports", [{"containerPort": 80}]), "privileged port"),
        (_plant("containers.0.ports", [{"containerPort": 8265, "hostPort": 8265}]), "node's port"),
        (_plant("containers.0.env", [{"name": "RAY_AUTH_TOKEN", "value": "abc"}]), "written out"),
    ],
)
def test_what_is_harmful_is_seen(plant: Callable[[dict[str, Any]], None], found: str) -> None:
    spec = copy.deepcopy(next(iter(PODS.values()))[1])
    plant(spec)
    assert any(found in danger for danger in dangers(spec))


def test_nothing_listens_beyond_its_network() -> None:
    assert not {each["kind"] for each in OBJECTS.values()} & {"Service", "Ingress", "Secret", "ClusterRole"}
    policies = [each["spec"] for each in OBJECTS.values() if each["kind"] == "NetworkPolicy"]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    for policy in policies:
        assert all(rule.get("from") for rule in policy.get("ingress", ()))
    selectors = [policy["podSelector"]["matchLabels"] for policy in policies if policy["podSelector"]]
    for name, (meta, _) in PODS.items():
        chosen = [each for each in selectors if each.items() <= meta.get("labels", {}).items()]
        assert len(chosen) == 1, f"{name} can reach nothing, or more than it should"


def test_every_pod_lives_under_the_strictest_standard() -> None:
    (namespace,) = (each for each in OBJECTS.values() if each["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    inside = {each["metadata"]["namespace"] for each in OBJECTS.values() if each["kind"] != "Namespace"}
    assert inside == {namespace["metadata"]["name"]}


def test_the_starter_may_create_runs_and_nothing_else() -> None:
    (role,) = (each for each in OBJECTS.values() if each["kind"] == "Role")
    assert role["rules"] == [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create"]}]


def test_images_are_this_version_everywhere() -> None:
    text = "\n".join(path.read_text() for path in YAML_FILES)
    ours = set(re.findall(r"specdiff:(\d+\.\d+\.\d+)", text + (INFRA / "README.md").read_text()))
    assert ours == {specdiff.__version__}
    assert "latest" not in re.findall(r"image: \S*:(\S+)", text)


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.relative_to(INFRA).as_posix())
def test_no_file_holds_a_secret(path: Path) -> None:
    references = {"secretRef", "secretName", "secrets", "automountServiceAccountToken", "HttpTokens"}
    references |= {"GF_SECURITY_ADMIN_PASSWORD__FILE", "grafana-password"}

    def without_references(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: without_references(value) for key, value in node.items() if key not in references}
        return [without_references(each) for each in node] if isinstance(node, list) else node

    for document in yaml.safe_load_all(path.read_text()):
        refuse_secrets(without_references(document), dotted)


def test_a_secret_would_be_seen() -> None:
    with pytest.raises(UsageError):
        refuse_secrets({"stringData": {"AWS_SECRET_ACCESS_KEY": "abc"}}, dotted)


def _ray_cluster() -> dict[str, Any]:
    return yaml.safe_load((INFRA / "ray-cluster.yaml").read_text())


def _ray_problems(config: dict[str, Any]) -> list[str]:
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    return [error.message for error in Draft7Validator(schema).iter_errors(config)]


def test_the_file_for_ray_up_is_valid() -> None:
    config = _ray_cluster()
    assert _ray_problems(config) == []
    assert config["head_node_type"] in config["available_node_types"]
    open_keys = {"provider", "node_config", "resources", "file_mounts", "metadata"}
    paths = [path for path in _keys(config) if not open_keys & set(path[:-1]) and path[0] != "available_node_types"]
    paths += [path for path in _keys(config) if path[0] == "available_node_types" and len(path) == 3]
    assert len(paths) > 20
    assert [path for path in paths if not _ray_problems(_misspelt(config, path))] == []


def test_ray_up_opens_nothing() -> None:
    config = _ray_cluster()
    assert PINNED.fullmatch(config["docker"]["image"])
    options = config["docker"]["run_options"]
    assert {"--security-opt=no-new-privileges", "--cap-drop=ALL", "--env=RAY_AUTH_MODE=token"} <= set(options)
    assert not any(
        "privileged" in each or "--user=0" in each for each in options if each != "--security-opt=no-new-privileges"
    )
    (head,) = (each for each in config["head_start_ray_commands"] if "ray start" in each)
    assert "--dashboard-host=127.0.0.1" in head
    assert config["provider"]["use_internal_ips"] is True


def test_monitoring_answers_on_loopback_only() -> None:
    config = yaml.safe_load((INFRA / "monitoring.compose.yaml").read_text())
    for service in config["services"].values():
        assert PINNED.fullmatch(service["image"])
        assert int(service["user"].partition(":")[0]) > 0
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith("./") or (INFRA / source).exists(), source
    assert "--web.listen-address=127.0.0.1:9090" in config["services"]["prometheus"]["command"]
    assert config["services"]["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_prometheus_accepts_its_files() -> None:
    rules = yaml.safe_load((INFRA / "prometheus" / "alerts.yml").read_text())
    assert all(rule["alert"] and rule["expr"] for group in rules["groups"] for rule in group["rules"])
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool: the files were only read")
    subprocess.run(
        [promtool, "check", "config", INFRA / "prometheus" / "prometheus.yml"], check=True, capture_output=True
    )


def test_alerts_name_metrics_that_runs_export() -> None:
    exported = {f"{name}_total" for name in (*meters.COUNTERS, *meters.EVENTS)} | {*meters.GAUGES}
    named = set(re.findall(r"ray_specdiff_(\w+)", (INFRA / "prometheus" / "alerts.yml").read_text()))
    assert named
    assert named <= exported


UNITS = ("specdiff@.service", "specdiff@.timer")


def _systemd(
    folder: Path, *command: str, unit: str = "", change: Callable[[str], str] = str
) -> subprocess.CompletedProcess[str]:
    """Runs systemd-analyze on our units as an instance `job`, with a program that is there."""
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze")
    for name in UNITS:
        text = (INFRA / "systemd" / name).read_text().replace("/opt/specdiff/bin/specdiff", sys.executable)
        (folder / name.replace("@", "@job")).write_text(change(text))
    units = [str(folder / name.replace("@", "@job")) for name in UNITS if name.endswith(unit)]
    return subprocess.run([program, *command, *units], capture_output=True, text=True)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    done = _systemd(tmp_path, "verify", "--man=no")
    assert (done.returncode, done.stderr) == (0, "")
    broken = _systemd(tmp_path, "verify", "--man=no", change=lambda text: text.replace("OnCalendar", "OnCalender"))
    assert "OnCalender" in broken.stderr


def test_the_service_is_locked_in(tmp_path: Path) -> None:
    text = (INFRA / "systemd" / "specdiff@.service").read_text()
    assert re.search(r"^User=specdiff$", text, re.MULTILINE)
    done = _systemd(tmp_path, "security", "--offline=yes", "--threshold=20", "--no-pager", unit=".service")
    assert done.returncode == 0, done.stdout[-2000:]
    weak = _systemd(
        tmp_path, "security", "--offline=yes", "--threshold=20", "--no-pager", unit=".service",
        change=lambda text: re.sub(r"^(Protect|Restrict|Capability|SystemCall).*$", "", text, flags=re.MULTILINE),
    )  # fmt: skip
    assert weak.returncode != 0


def test_its_page_tells_of_every_file() -> None:
    page = (INFRA / "README.md").read_text()
    files = [path.relative_to(INFRA).as_posix() for path in INFRA.rglob("*") if path.is_file()]
    assert [
        name for name in files if name != "README.md" and f"`{name}`" not in page and Path(name).name not in page
    ] == []


def _locked(name: str) -> str:
    lines = (INFRA / "requirements.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines)[name]
