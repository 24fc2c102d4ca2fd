"""The Kubernetes manifests of infra/, and what any pod in them must not do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

INFRA = Path(__file__).parents[1] / "infra"
PINNED = re.compile(r"[^:@\s]+(/[^:@\s]+)*(:v?\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})")


def manifests() -> dict[str, dict[str, Any]]:
    """Every object, by file and kind."""
    found = {}
    for path in sorted((INFRA / "kubernetes").glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            found[
                f"{path.name}:{each['kind']}:{each['metadata'].get('name', each['metadata'].get('generateName'))}"
            ] = each
    return found


def pods(node: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Path, metadata and spec of every pod template below a node."""
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield at, node.get("metadata", {}), node["spec"]
        for key, value in node.items():
            yield from pods(value, f"{at}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from pods(value, f"{at}[{index}]")


def dangers(spec: dict[str, Any]) -> list[str]:
    """What a pod may that it should not, in words."""
    found = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    whole = spec.get("securityContext", {})
    if whole.get("runAsNonRoot") is not True or not whole.get("runAsUser"):
        found.append("the pod may run as root")
    if whole.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("no seccomp profile")
    if "automountServiceAccountToken" not in spec and "serviceAccountName" in spec:
        found.append("the account's token is mounted unasked")
    found += [f"volume {each['name']} is the node's" for each in spec.get("volumes", ()) if "hostPath" in each]
    for each in [*spec["containers"], *spec.get("initContainers", ())]:
        found += [f"{each['name']}: {danger}" for danger in _container_dangers(each)]
    return found


def _container_dangers(container: dict[str, Any]) -> Iterator[str]:
    context, resources = container.get("securityContext", {}), container.get("resources", {})
    if not PINNED.fullmatch(container.get("image", "")):
        yield f"image {container.get('image')} is not pinned"
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield "may gain privileges"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "may write to its root"
    if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
        yield "runs as root"
    for kind, names in (("requests", ("cpu", "memory")), ("limits", ("memory",))):
        for name in names:
            if name not in resources.get(kind, {}):
                yield f"has no {kind} of {name}"
    for port in container.get("ports", ()):
        if port["containerPort"] < 1024:
            yield f"listens on the privileged port {port['containerPort']}"
        if "hostPort" in port:
            yield f"listens on the node's port {port['hostPort']}"
    for each in container.get("env", ()):
        if re.search("token|secret|passw|key", each["name"], re.IGNORECASE) and "value" in each:
            yield f"{each['name']} is written out"
