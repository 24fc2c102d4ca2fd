"""What a saved pipeline says of itself, read without building a network."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = dict[str, Any]

WEIGHTS = "diffusion_pytorch_model"
_NOT_SETTINGS = ("_diffusers_version", "_name_or_path", "_commit_hash")


@dataclass(frozen=True)
class Component:
    """A part of a pipeline with weights.

    Attributes:
        path: folder of its ``config.json`` and weights; the pipeline's own for the oldest pipelines of one network.
        config: its configuration.
        safe: whether its weights are safetensors; a pickle that is loaded with ``weights_only`` otherwise.
        files: its weights. As safetensors they are mapped into memory, so that the workers of a node share one copy of
            what they read.
    """

    path: Path
    config: Config
    safe: bool
    files: tuple[Path, ...]


class Folder:
    """A pipeline as diffusers' ``save_pretrained`` writes it.

    Attributes:
        path: of the folder.
        kind: class of the pipeline.
    """

    def __init__(self, path: Path) -> None:
        """Reads ``model_index.json``.

        Raises:
            ValueError: it is missing or broken, or the pipeline needs code of its own.
        """
        self.path = path
        if not (path / "model_index.json").is_file():
            raise ValueError(
                f"{path} has no model_index.json, so it is no saved pipeline; name the folder that a diffusers "
                "pipeline's save_pretrained wrote"
            )
        self._index = _read(path / "model_index.json")
        kind = self._index.get("_class_name")
        if not isinstance(kind, str):
            raise ValueError(f"{path}: a pipeline with code of its own ({kind}) is refused: no code is loaded")
        self.kind = kind

    def class_of(self, name: str) -> str:
        """Class of a component; '' where the pipeline has none of this name."""
        entry = self._index.get(name)
        return str(entry[1] or "") if isinstance(entry, list) and len(entry) == 2 else ""

    def scheduler(self) -> Config:
        """The scheduler's configuration. Raises ValueError where it cannot be read."""
        for path in (self.path / "scheduler" / "scheduler_config.json", self.path / "scheduler_config.json"):
            if path.is_file():
                return _read(path)
        raise ValueError(f"{self.path} has no scheduler/scheduler_config.json")

    def component(self, name: str) -> Component:
        """A component with weights. Raises ValueError where its configuration or its weights are missing."""
        path = self.path / name if (self.path / name).is_dir() else self.path
        if not (path / "config.json").is_file():
            raise ValueError(f"{self.path} has no {name}/config.json")
        for ending in ("safetensors", "bin"):
            if (path / f"{WEIGHTS}.{ending}").is_file():
                files: tuple[Path, ...] = (path / f"{WEIGHTS}.{ending}",)
            elif (path / f"{WEIGHTS}.{ending}.index.json").is_file():
                parts = _read(path / f"{WEIGHTS}.{ending}.index.json").get("weight_map", {})
                files = tuple(path / part for part in sorted(set(parts.values())))
            else:
                continue
            if absent := [each.name for each in files if not each.is_file()]:
                raise ValueError(f"{path} lacks {', '.join(absent)}; copy or download the model again")
            return Component(path, _read(path / "config.json"), ending == "safetensors", files)
        raise ValueError(f"{path} has no weights: neither {WEIGHTS}.safetensors nor {WEIGHTS}.bin")

    def licence(self) -> str:
        """What the model card's front matter says, or that it says nothing."""
        try:
            text = (self.path / "README.md").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return "not stated"
        front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
        lines = re.findall(r"^(license|license_name):[ \t]*[\"']?([^\"'\n]+)", front[1] if front else "", re.MULTILINE)
        stated = dict(lines)
        return (stated.get("license_name") or stated.get("license") or "not stated").strip()

    def class_names(self, count: int) -> tuple[str, ...]:
        """One a class, from the pipeline's ``id2label``; empty where that does not name them all."""
        names = self._index.get("id2label")
        if not isinstance(names, dict) or any(str(i) not in names for i in range(count)):
            return ()
        return tuple(str(names[str(i)]) for i in range(count))


def weights_sha256(components: list[Component]) -> str:
    """Of the only file, or where there are several of a list of their hashes in order."""
    found = [_sha256(path) for component in components for path in component.files]
    return found[0] if len(found) == 1 else hashlib.sha256("\n".join(found).encode()).hexdigest()


def configs_sha256(configs: list[Config]) -> str:
    """Of what configurations say, whatever version of the library wrote them and from where."""
    told = [{key: value for key, value in config.items() if key not in _NOT_SETTINGS} for config in configs]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _read(path: Path) -> Config:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return value
