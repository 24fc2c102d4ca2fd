"""A mixture of isotropic Gaussians: a target whose denoiser, law and moments are exact."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdiff.requests import Request
from specdiff.transitions import Transitions


class GaussianMixture:
    """Σ_k w_k N(μ_k, τ_k² I) with its posterior mean as the denoiser.

    Attributes:
        shape: (dimensions,).
        mean: float64 [dimensions], exact.
        covariance: float64 [dimensions, dimensions], exact.
    """

    def __init__(self, means: Tensor, stds: Tensor, weights: Tensor, transitions: Transitions) -> None:
        """Set up the mixture.

        Args:
            means: [modes, dimensions].
            stds: [modes], positive.
            weights: [modes], positive; they are normalised.
            transitions: the sampler's steps.

        Raises:
            ValueError: shapes differ, or a standard deviation or a weight is not positive.
        """
        if means.dim() != 2 or stds.shape != means.shape[:1] or weights.shape != means.shape[:1]:
            raise ValueError(
                f"shapes: means {list(means.shape)}, stds {list(stds.shape)}, weights {list(weights.shape)}"
            )
        if not (stds > 0).all() or not (weights > 0).all():
            raise ValueError("standard deviations and weights must be positive")
        self.shape = (means.shape[1],)
        self.transitions = transitions
        self._means, self._variances = means.double(), stds.double() ** 2
        self._weights = weights.double() / weights.double().sum()
        self.mean = self._weights @ self._means
        centred = self._means - self.mean
        within = (self._weights * self._variances).sum() * torch.eye(means.shape[1], dtype=torch.float64)
        self.covariance = within + (self._weights[:, None] * centred).T @ centred

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """E[x | state], float32 [rows, dimensions]."""
        alpha = self.transitions.alpha[step][:, None]  # [rows, 1]
        noise_variance = self.transitions.noise_std[step][:, None] ** 2
        variance = alpha**2 * self._variances + noise_variance  # [rows, modes], of the state in each mode
        y = state.double()
        squared = y.square().sum(1, keepdim=True) - 2 * alpha * (y @ self._means.T)  # |y − αμ|², [rows, modes]
        squared = squared + alpha**2 * self._means.square().sum(1)
        log_density = -0.5 * squared / variance - 0.5 * len(self.mean) * variance.log()
        responsibility = torch.softmax(log_density + self._weights.log(), dim=1)
        # In mode k the posterior mean is μ_k + gain_k (y − αμ_k).
        gain = alpha * self._variances / variance  # [rows, modes]
        means = (responsibility * (1 - alpha * gain)) @ self._means
        return (means + (responsibility * gain).sum(1, keepdim=True) * y).float()

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        for request in requests:
            if request.label is not None or request.prompt is not None:
                raise ValueError(f"request {request.key!r}: a Gaussian mixture takes neither label nor prompt")
        return {}

    def decode(self, latents: Tensor) -> Tensor:
        """[−1, 1] to grey levels, one column a dimension: uint8 [rows, 1, dimensions, 1]."""
        return ((latents + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)[:, None, :, None]

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent draws of the mixture itself, float64 [count, dimensions]."""
        modes = torch.multinomial(self._weights, count, replacement=True, generator=generator)
        noise = torch.randn(count, *self.shape, dtype=torch.float64, generator=generator)
        return self._means[modes] + self._variances[modes, None].sqrt() * noise
