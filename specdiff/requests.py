"""What goes into the sampler and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """One image that is asked for.

    Attributes:
        key: the caller's name for it.
        seed: 0 … 2⁶³−1; the image's random numbers depend on nothing else.
        label: class, for class-conditional targets; None is the null class where the target has one.
        prompt: text, for targets that take prompts.
        negative_prompt: text to steer away from.
        guidance_scale: strength of classifier-free guidance; 1 and None are none.
        extra: carried through to the sample, untouched.
    """

    key: str
    seed: int
    label: int | None = None
    prompt: str | None = None
    negative_prompt: str | None = None
    guidance_scale: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check("seed", "an integer from 0 to 2^63 − 1")
        if self.label is not None:
            self._check("label", "a class number")

    def _check(self, name: str, what: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, SupportsIndex) or not 0 <= index(value) < 2**63:
            raise ValueError(f"request {self.key!r}: {name} must be {what}, not {value!r}")
        object.__setattr__(self, name, index(value))  # NumPy's integers become plain ones


@dataclass(frozen=True)
class Sample:
    """One image that was made, or the reason why there is none.

    Attributes:
        key, seed, extra: the request's own.
        image: uint8 [height, width, channels]; None after an error, and before ``Sampler.decode``.
        latent: float32, the final state; None after an error.
        rounds: draft-verify-advance rounds.
        calls: sequential network calls that this image needed.
        evaluations: states of its own that the network saw.
        error: None, or why there is no image.
        states: state before step n, float32, for each n in the sampler's ``record_steps``.
    """

    key: str
    seed: int
    image: NDArray[np.uint8] | None
    latent: Tensor | None
    rounds: int
    calls: int
    evaluations: int
    error: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[int, Tensor] = field(default_factory=dict)
