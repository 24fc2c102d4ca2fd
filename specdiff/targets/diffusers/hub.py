"""Where the files of a model are: the folder that a target's name means, downloaded where it is a hub id."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from specdiff.targets.diffusers.extra import require
from specdiff.targets.errors import TargetUnavailable

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FILES = ("*.json", "*.safetensors", "*.bin", "README.md")
VARIANTS = ("*.fp16.*", "*.bf16.*", "*.non_ema.*", "*.ema.*")  # a second copy of the same weights, or other ones


def is_model(name: str) -> bool:
    """Whether a target's name is a model folder or a hub id, rather than one of the registry."""
    return "/" in name or os.sep in name or name.startswith(("~", ".")) or Path(name, "model_index.json").is_file()


def locate(name: str, revision: str | None) -> tuple[Path, str | None]:
    """The folder of a model, and the commit it is of where it came from the hub.

    A download is shared by all processes of a machine: it lies in the hub's cache (``HF_HOME``), files are fetched
    under a lock, and what is there is not fetched again. Without ``revision`` the hub's ``main`` is asked for, and the
    commit in the cache is taken where the hub is out of reach.

    Raises:
        ValueError: there is no such folder or hub id, or it may not be read; or a revision of a folder.
        TargetUnavailable: the hub is out of reach and the model is not in the cache.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision {revision!r} is for hub ids, and {name} is a folder; leave it out")
        return folder, None
    if not HUB_ID.fullmatch(name):
        raise ValueError(f"there is no folder {name}; name the folder of a saved pipeline, or a hub id as in org/name")
    hub, errors = require("huggingface_hub"), require("huggingface_hub.errors")
    try:
        folder = Path(_download(hub, name, revision))
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise ValueError(
            f"there is no folder {name}, and the hub has no such model that may be read here: {_line(error)}; check "
            "the name, or log in with `hf auth login` where it is private or gated"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name} has no revision {revision!r} on the hub") from error
    except (OSError, errors.HfHubHTTPError) as error:
        raise TargetUnavailable(
            f"there is no folder {name}, the hub is out of reach and its cache does not hold the model: "
            f"{_line(error)}; download it where there is a network (hf download {name}), and name that folder"
        ) from error
    return folder, folder.name


def _download(hub: Any, name: str, revision: str | None) -> str:
    return hub.snapshot_download(name, revision=revision, allow_patterns=FILES, ignore_patterns=VARIANTS)


def _line(error: Exception) -> str:
    """The first line: what follows are the library's own guesses."""
    return next(iter(str(error).splitlines()), type(error).__name__)
