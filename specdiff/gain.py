"""The Kalman gain: carries a known evaluation of the denoiser to another state.

In natural coordinates u = y α/s², λ = α²/s² the denoiser of a Gaussian prior obeys, exactly,
x̂(u′, λ′) = x̂(u, λ) + C_{λ′} [(u′ − u) − x̂(u, λ) (λ′ − λ)], where C_λ is the posterior covariance: the bracket is the
innovation of a Kalman–Bucy filter, C its gain. Here C is diagonal in an orthonormal basis, and what is kept of it is
the shrinkage λC, which lies between 0 and 1, as a function of λ and frequency: it depends on the law of the data alone,
not on how many steps a sampler takes.

Where predictions are pixels in [−1, 1] the covariance is taken as D R D with D² = 1 − x̂², the largest variance that a
bounded value of mean x̂ can have (Bhatia & Davis, 2000), so that only R is tabulated: the black background of a picture
has none of it.

A gain that is wrong costs speed, never exactness, as long as it is fixed in advance and looks at nothing but the
evaluation that it corrects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from specdiff.noise import Purpose, normals
from specdiff.requests import Request

if TYPE_CHECKING:  # targets carry gains
    from specdiff.targets.base import Target


class Basis:
    """The two-dimensional DCT of each channel (DCT-II, orthonormal); no transform for states that are not pictures."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._tables = (_dct(shape[1]), _dct(shape[2])) if len(shape) == 3 else None

    def forward(self, x: Tensor) -> Tensor:
        """Coefficients of x, [..., *shape]."""
        if self._tables is None:
            return x
        rows, columns = (table.to(x) for table in self._tables)
        return rows @ x @ columns.T

    def inverse(self, x: Tensor) -> Tensor:
        """What has these coefficients, [..., *shape]."""
        if self._tables is None:
            return x
        rows, columns = (table.to(x) for table in self._tables)
        return rows.T @ x @ columns


@dataclass(frozen=True)
class Gain:
    """λC of a target as a function of the signal-to-noise ratio.

    Attributes:
        snr: float64 [points], positive and increasing.
        shrinkage: float32 [points, *frequencies], 0 … 1; frequencies are the state's shape where the basis is the DCT
            of pictures, and as many ones otherwise.
        bounded: whether predictions lie in [−1, 1] and the shrinkage is relative to √(1 − x̂²) on both sides.
    """

    snr: Tensor
    shrinkage: Tensor
    bounded: bool = False

    def __post_init__(self) -> None:
        if self.snr.dim() != 1 or len(self.snr) != len(self.shrinkage):
            raise ValueError(f"gain: {list(self.snr.shape)} ratios for shrinkages {list(self.shrinkage.shape)}")
        if not (self.snr > 0).all() or not (self.snr.diff() > 0).all():
            raise ValueError("gain: the signal-to-noise ratios must be positive and increase")

    @cached_property
    def basis(self) -> Basis:
        return Basis(tuple(self.shrinkage.shape[1:]))

    def scale(self, prediction: Tensor) -> Tensor | None:
        """D, by which the covariance is scaled on both sides, like prediction; None for 1."""
        return (1 - prediction.square()).clamp(min=0).sqrt() if self.bounded else None

    def apply(self, covariance: Tensor, innovation: Tensor) -> Tensor:
        """A covariance by frequency, [rows, *frequencies], times an innovation, [rows, *shape]."""
        return self.basis.inverse(covariance * self.basis.forward(innovation))

    def at(self, snr: Tensor) -> Tensor:
        """The shrinkage at other ratios, float64 [N] → float64 [N, *frequencies]: linear in ln λ, constant beyond."""
        knots = self.snr.log()
        x = snr.clamp(min=float(self.snr[0]), max=float(self.snr[-1])).log()
        if len(knots) == 1:
            return self.shrinkage.double().expand(len(snr), *self.shrinkage.shape[1:])
        upper = torch.searchsorted(knots, x).clamp(1, len(knots) - 1)
        share = (x - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
        table = self.shrinkage.double()
        return torch.lerp(table[upper - 1], table[upper], share.view(-1, *(1 for _ in table.shape[1:])))

    def to_bytes(self) -> bytes:
        """A safetensors file."""
        return save({"snr": self.snr, "shrinkage": self.shrinkage, "bounded": torch.tensor(self.bounded)})

    @classmethod
    def load(cls, path: Path) -> Gain:
        """Read what ``to_bytes`` made."""
        tensors = load_file(path)
        return cls(tensors["snr"], tensors["shrinkage"], bool(tensors["bounded"]))


@torch.no_grad()
def calibrate(
    target: Target,
    trajectories: int = 32,
    *,
    requests: Sequence[Request] | None = None,
    points: int = 64,
) -> Gain:
    """Least squares of the denoiser's increments on innovations, along sequential trajectories.

    Args:
        target: what is sampled, with at least three steps.
        trajectories: how many.
        requests: whose images they are; by default seeds 0, 1, … without label.
        points: at most so many signal-to-noise ratios are kept, evenly in their logarithm.

    Returns:
        The gain, smoothed over steps and clipped to [0, 1].
    """
    if requests is None:
        requests = [Request(str(seed), seed) for seed in range(trajectories)]
    transitions = target.transitions
    shape = tuple(target.shape)
    basis = Basis(shape)
    device = torch.device(getattr(target, "device", "cpu"))
    # Σ λ Δx̂ I and Σ I² of each step, per unit of λ, float64 [*frequencies]: for unbounded predictions, for bounded ones
    products: tuple[list[Tensor], list[Tensor]] = ([], [])
    squares: tuple[list[Tensor], list[Tensor]] = ([], [])
    bounded = True
    previous: tuple[Tensor, Tensor] | None = None
    for n, (state, prediction) in enumerate(_trajectory(target, requests[:trajectories], device)):
        natural, found = transitions.natural[n].to(device) * state.double(), prediction.double()
        bounded = bounded and bool((prediction.abs() <= 1).all())
        if previous is not None:
            before, known = previous
            span = float(transitions.snr[n] - transitions.snr[n - 1])
            scale = (1 - known.square()).clamp(min=0).sqrt()
            for i, factor in enumerate((torch.ones_like(scale), scale)):
                innovation = basis.forward(factor * (natural - before - known * span))
                change = basis.forward(factor * (found - known))
                products[i].append(_pooled(float(transitions.snr[n]) / span * change * innovation, shape))
                squares[i].append(_pooled(innovation.square() / span, shape))
        previous = natural, found
    width = max(1.0, 0.02 * len(transitions))
    smooth = [_smoothed(torch.stack(sums[bounded]).cpu(), width) for sums in (products, squares)]
    shrinkage = (smooth[0] / smooth[1].clamp(min=1e-300)).clamp(0, 1)
    # Evenly in ln λ, at most one point for every step.
    log_snr = transitions.snr[1:].log()
    goals = torch.linspace(float(log_snr[0]), float(log_snr[-1]), min(points, len(log_snr)), dtype=torch.float64)
    chosen = sorted({int((log_snr - goal).abs().argmin()) for goal in goals})
    return Gain(transitions.snr[1:][chosen].clone(), shrinkage[chosen].float(), bounded)


def _trajectory(target: Target, requests: Sequence[Request], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The states of the sequential sampler before each step, and the predictions there.

    The random numbers are calibration's own: a gain fitted on numbers that an image is later made of would not be fixed
    in advance.
    """
    transitions, shape = target.transitions, tuple(target.shape)
    conditioning = target.condition(requests)
    seeds = torch.tensor([request.seed for request in requests], device=device)
    zero = torch.zeros_like(seeds)
    state = normals(seeds, zero, zero, math.prod(shape), Purpose.CALIBRATION_START).view(-1, *shape)
    for n in range(len(transitions)):
        prediction = target.denoise(state, zero + n, conditioning)
        yield state, prediction
        noise = normals(seeds, zero + n, zero, math.prod(shape), Purpose.CALIBRATION_STEP).view(-1, *shape)
        a, b, sigma = (float(table[n]) for table in (transitions.a, transitions.b, transitions.sigma))
        state = a * state + b * prediction + sigma * noise


def _pooled(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum over trajectories and, where the basis is none, over the state: float64 [*frequencies]."""
    summed = values.sum(0)
    return summed if len(shape) == 3 else summed.sum().view(*(1 for _ in shape))


def _smoothed(values: Tensor, width: float) -> Tensor:
    """Values [steps, …] under a Gaussian window of that standard deviation in steps."""
    position = torch.arange(len(values), dtype=values.dtype)
    weights = torch.exp(-0.5 * ((position[:, None] - position) / width) ** 2)
    weights = weights / weights.sum(1, keepdim=True)
    return (weights @ values.flatten(1)).view_as(values)


def _dct(size: int) -> Tensor:
    """Orthonormal DCT-II: float64 [size, size], a row a frequency."""
    position = np.arange(size)
    table = np.sqrt(2 / size) * np.cos(math.pi * (position + 0.5) * position[:, None] / size)
    table[0] *= math.sqrt(0.5)
    return torch.from_numpy(table)
