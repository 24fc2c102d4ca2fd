"""Versions of what the numbers and the bytes depend on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

SOFTWARE = ("specdiff", "torch", "numpy", "ray", "pyarrow", "pillow", "torch-fidelity")


def software() -> dict[str, str]:
    """As far as it is installed."""
    versions = {"python": platform.python_version()}
    for name in SOFTWARE:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
