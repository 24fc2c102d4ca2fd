"""Sums over feature vectors, from which mean and covariance follow, and the Fréchet distance between two of those."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

ROUNDING = 1e-4  # of tr Σ: a Fréchet distance below it may be nothing but rounding
QUICK_ROUNDING = 1e-7  # of tr Σ: by how much `quick_frechet` is off where covariances are singular


@dataclass(frozen=True)
class Moments:
    """Sums in float64. Those of two sets add up to those of both.

    Attributes:
        count: of vectors.
        total: Σ f, [dimensions].
        outer: Σ f fᵀ, [dimensions, dimensions].
    """

    count: int
    total: NDArray[np.float64]
    outer: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Moments:
        """Of features [rows, dimensions], summed in float64."""
        f = features.astype(np.float64)
        return cls(len(f), f.sum(axis=0), f.T @ f)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    def mean(self) -> NDArray[np.float64]:
        return self.total / self.count

    def covariance(self) -> NDArray[np.float64]:
        """The unbiased one, which needs two vectors."""
        mean = self.mean()
        return (self.outer - self.count * np.outer(mean, mean)) / (self.count - 1)

    def gaussian(self) -> Gaussian:
        return Gaussian(self.count, self.mean(), self.covariance())


@dataclass(frozen=True)
class Gaussian:
    """Mean [dimensions] and covariance [dimensions, dimensions], float64; how many vectors they are of, where known."""

    count: int | None
    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]

    @property
    def dimensions(self) -> int:
        return len(self.mu)


def frechet(a: Gaussian, b: Gaussian) -> float:
    """‖μ_a − μ_b‖² + tr Σ_a + tr Σ_b − 2 tr √(Σ_a Σ_b), as torch-fidelity computes it, digit for digit."""
    score = fid_statistics_to_metric({"mu": a.mu, "sigma": a.sigma}, {"mu": b.mu, "sigma": b.sigma}, verbose=False)
    return float(score[KEY_METRIC_FID])


def quick_frechet(a: Gaussian, b: Gaussian) -> float:
    """The same from symmetric matrices, several times as fast: √(Σ_a Σ_b) has the trace of √(√Σ_a Σ_b √Σ_a).

    It differs from `frechet` by rounding, most where the covariances are singular.
    """
    values, vectors = np.linalg.eigh(a.sigma)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    shared = np.sqrt(np.linalg.eigvalsh(root @ b.sigma @ root).clip(min=0)).sum()
    difference = a.mu - b.mu
    return float(difference @ difference + np.trace(a.sigma) + np.trace(b.sigma) - 2 * shared)


def without_rounding(distance: float, *of: Gaussian) -> float:
    """The distance between two Gaussians, or 0 where it is below what rounding alone may make of none."""
    scale = max(float(np.trace(gaussian.sigma)) for gaussian in of)
    return 0.0 if abs(distance) < ROUNDING * scale else distance
