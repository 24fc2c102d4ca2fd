"""The diffusers library, which is an extra of the package."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def require(module: str) -> Any:
    """A module of the extra.

    Raises:
        ValueError: it is not installed; names the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"model folders and hub ids need the diffusers extra: pip install 'specdiff[diffusers]' ({error})"
        ) from error
