"""Strict validation of KubeRay's objects against its own custom resource definitions."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "shared" / "kuberay"
PRESERVED = "x-kubernetes-preserve-unknown-fields"
# The API server's own, of which definitions say nothing: what people write.
METADATA = {
    "type": "object",
    "properties": {name: {} for name in ("name", "generateName", "namespace", "labels", "annotations")},
    "additionalProperties": False,
    "required": ["namespace"],
    "anyOf": [{"required": ["name"]}, {"required": ["generateName"]}],
}


def problems(manifest: dict[str, Any]) -> list[str]:
    """What is wrong with an object of KubeRay's. Skips the test where the definitions are not at hand."""
    errors = _validator(manifest["kind"], manifest["apiVersion"].partition("/")[2]).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in errors]


@cache
def _validator(kind: str, version: str) -> Draft202012Validator:
    path = FOLDER / f"ray.io_{kind.lower()}s.yaml.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {FOLDER}: KubeRay's definitions are not part of the repository")
    with gzip.open(path) as file:
        definition = yaml.load(file, yaml.CSafeLoader)
    versions = {each["name"]: each for each in definition["spec"]["versions"]}
    schema = strict(versions[version]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = METADATA
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return Draft202012Validator(schema)


def strict(schema: Any) -> Any:
    """An OpenAPI schema of Kubernetes as a JSON schema that knows no fields beyond the named ones.

    The API server would drop the others without a word: a misspelt field is a field that is not there.
    """
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and PRESERVED not in schema:
        made["additionalProperties"] = False
    return made
