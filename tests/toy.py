"""Gaussian mixtures under every family of process, for exactness tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdiff import Transitions
from specdiff.targets import GaussianMixture


def cosine(steps: int) -> Tensor:
    """ᾱ of a cosine schedule that starts at N(0, I): float64 [steps]."""
    alpha_bar = torch.cos(torch.pi / 2 * (1 - torch.arange(steps, dtype=torch.float64) / steps)) ** 2
    alpha_bar[0] = 0
    return alpha_bar


PROCESSES: dict[str, Callable[[int], Transitions]] = {
    "ddpm": lambda steps: Transitions.ddpm(cosine(steps)),
    "ddpm-large": lambda steps: Transitions.ddpm(cosine(steps), "fixed_large"),
    "ddim-0.5": lambda steps: Transitions.ddim(cosine(steps), eta=0.5),
    "ends-in-noise": lambda steps: Transitions.ddim(cosine(steps), final_alpha_bar=0.99999),
    "churn-0.3": lambda steps: Transitions.churn(torch.linspace(1, 0, steps + 1, dtype=torch.float64), 0.3),
    "churn-1": lambda steps: Transitions.churn(torch.linspace(1, 0, steps + 1, dtype=torch.float64), 1.0),
}


def mixture(steps: int, dimensions: int, modes: int, process: str = "ddpm") -> GaussianMixture:
    """Modes of standard deviation 0.3 at random places."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(modes, dimensions, generator=generator, dtype=torch.float64)
    return GaussianMixture(means, torch.full((modes,), 0.3), torch.linspace(1, 2, modes), PROCESSES[process](steps))
