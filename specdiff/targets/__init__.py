"""What can be sampled: the protocol, a registry by name, and the targets that come with the package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from specdiff.targets.base import Guided, Target, TargetInfo
from specdiff.targets.diffusers.hub import is_model
from specdiff.targets.diffusers.target import Pipeline
from specdiff.targets.edm import EDM
from specdiff.targets.errors import TargetUnavailable
from specdiff.targets.fashion_mnist.target import FashionMNIST
from specdiff.targets.gaussian_mixture import GaussianMixture
from specdiff.targets.null import Null

__all__ = [
    "EDM",
    "GaussianMixture",
    "Guided",
    "Target",
    "TargetInfo",
    "TargetUnavailable",
    "inspect_target",
    "load_target",
    "register",
    "registered_targets",
]


class Factory(Protocol):
    """Builds a target, or only describes it, from the same settings."""

    @staticmethod
    def info(**settings: Any) -> TargetInfo: ...

    def __call__(self, *, device: str, **settings: Any) -> Target: ...


_REGISTRY: dict[str, Any] = {"fashion-mnist": FashionMNIST, "noise": Null}


def register(name: str, factory: Callable[..., Target]) -> None:
    """Make a target known by name; the factory's ``info`` must describe it from the same settings.

    Raises:
        ValueError: the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"a target named {name!r} is registered already")
    _REGISTRY[name] = factory


def load_target(name: str, *, device: str = "cpu", **settings: Any) -> Target:
    """Build a target, weights included.

    Args:
        name: of the registry; the folder of a saved diffusers pipeline; or a hub id, as in ``org/name``.
        device: torch device of network and states.
        settings: the target's own, such as ``steps`` and ``eta``.

    Raises:
        ValueError: an unknown name or setting, a setting out of range, or a model that cannot be sampled exactly.
        TargetUnavailable: the model would have to be downloaded, and the hub is out of reach.
    """
    return _call(_factory(name), name, {"device": device, **settings})


def inspect_target(name: str, **settings: Any) -> TargetInfo:
    """Describe a target without building it; checks the settings as ``load_target`` does, and downloads what it would.

    Raises:
        ValueError, TargetUnavailable: as for ``load_target``.
    """
    if name not in _REGISTRY and is_model(name):
        return _call(partial(Pipeline.info, name), name, settings)
    return _call(_factory(name).info, name, settings)


def registered_targets() -> list[TargetInfo]:
    """What the registry holds, each with its default settings."""
    return [inspect_target(name) for name in sorted(_REGISTRY)]


def _factory(name: str) -> Any:
    if name not in _REGISTRY and is_model(name):
        return partial(Pipeline, name)
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(_REGISTRY))}"
        raise ValueError(f"there is no target named {name!r}; {hint}")
    return _REGISTRY[name]


def _call(function: Callable[..., Any], name: str, settings: dict[str, Any]) -> Any:
    try:
        return function(**settings)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        reason = f" has no setting {unknown[1]!r}; leave it out" if unknown else f": {error}"
        raise ValueError(f"{name}{reason}") from error
