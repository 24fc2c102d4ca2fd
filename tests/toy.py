"""Small targets and drafters on which an exactness test can see a bias (see the module's tests for which)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdiff import Request, Transitions
from specdiff.targets import GaussianMixture


class ToyChain:
    """y′ = 0.6 y + 0.5 sin 2y + z in two dimensions; the last step is deterministic."""

    shape = (2,)

    def __init__(self, steps: int) -> None:
        ones = torch.ones(steps, dtype=torch.float64)
        sigma = ones.clone()
        sigma[-1] = 0
        self.transitions = Transitions(0.6 * ones, 0.5 * ones, sigma, ones, ones, ones)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        return torch.sin(2 * state)

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        return {}

    def decode(self, latents: Tensor) -> Tensor:
        return latents.to(torch.uint8)[:, None, :, None]


class OffsetDrafter:
    """The toy chain's own prediction, off by δ(y) along the first axis in units of σ."""

    def __init__(self, delta: Callable[[Tensor], Tensor]) -> None:
        self._delta = delta

    def predict(self, state: Tensor, step: Tensor) -> Tensor:
        guess = torch.sin(2 * state)
        guess[:, 0] += self._delta(state) / 0.5
        return guess

    def observe(self, predictions: Tensor, kept: Tensor, length: Tensor) -> None:
        pass


def offset(delta: float) -> Callable[..., OffsetDrafter]:
    """A factory of drafters that are off by a constant."""
    return lambda lanes, shape, device: OffsetDrafter(lambda state: torch.full((len(state),), delta))


def mixture(steps: int, dimensions: int, modes: int, seed: int = 0) -> GaussianMixture:
    """Modes of standard deviation 0.3 at random places, under a cosine schedule that starts at N(0, I)."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(modes, dimensions, generator=generator, dtype=torch.float64)
    alpha_bar = torch.cos(torch.pi / 2 * (1 - torch.arange(steps, dtype=torch.float64) / steps)) ** 2
    alpha_bar[0] = 0
    return GaussianMixture(means, torch.full((modes,), 0.3), torch.linspace(1, 2, modes), Transitions.ddim(alpha_bar))
