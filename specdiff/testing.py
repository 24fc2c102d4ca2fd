"""Statistical evidence that a sampler's committed path follows its transitions, for the rules here and for your own.

The innovation test needs no reference run: along a path that a sampler committed to, the innovations
w_n = (y_{n+1} − a_n y_n − b_n x̂(y_n, n)) / σ_n must be independent standard normal numbers, whatever was drafted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdiff.drafters import Window
from specdiff.requests import Request, Sample
from specdiff.sampler import Sampler
from specdiff.targets.base import Target
from specdiff.transitions import Transitions
from specdiff.verification import Verification

LAGS = 3
ORDERS = 4
"""Highest Hermite polynomial. Products of two are limited to the same total degree, beyond which tails are too heavy
for the normal approximation at tens of thousands of samples."""


TOY_CASES = ((6, 0.8, 3), (12, 0.5, 6), (12, 1.5, 3))
"""Steps, δ and γ at which the biases that are known of can be seen."""


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

    opens = False

    def __init__(self, delta: Callable[[Tensor], Tensor]) -> None:
        self._delta = delta

    def draft(self, state: Tensor, window: Window) -> Tensor:
        guesses = []
        for j in range(window.step.shape[1] - 1):
            guess = torch.sin(2 * state)
            guess[:, 0] += self._delta(state) / 0.5
            guesses.append(guess)
            state = window.next(j, state, guess)
        return torch.stack(guesses, dim=1)

    def observe(self, *what_the_network_said: Tensor) -> None:
        pass


def offset(delta: float) -> Callable[..., OffsetDrafter]:
    """A factory of drafters that are off by a constant."""
    return lambda lanes, shape, device: OffsetDrafter(lambda state: torch.full((len(state),), delta))


@dataclass(frozen=True)
class Exactness:
    """What ``check_exactness`` found.

    Attributes:
        p_values: of the innovation test, by configuration of the toy chain.
        level: family-wise false-alarm rate.
    """

    p_values: dict[str, float]
    level: float

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against exactness."""
        return min(self.p_values.values()) > self.level / len(self.p_values)


def check_exactness(
    verification: str | Verification, *, count: int = 20_000, level: float = 1e-4, seed: int = 0
) -> Exactness:
    """Test a verification rule, your own or one of ours, on a toy chain with drafters that are off by a known amount.

    Args:
        verification: a name that ``Sampler`` knows, or an object that follows the protocol.
        count: images a configuration; about two seconds each at 20,000.
        level: family-wise false-alarm rate.
        seed: the first image's.
    """
    p_values = {}
    for steps, delta, draft_length in TOY_CASES:
        target = ToyChain(steps)
        requests = [Request(str(i), seed + i) for i in range(count)]
        sampler = Sampler(
            target,
            drafter=offset(delta),
            verification=verification,
            draft_length=draft_length,
            lanes=count,
            record_steps=range(steps + 1),
        )
        samples = sampler.sample(requests).samples
        name = f"{steps} steps, delta {delta}, draft length {draft_length}"
        p_values[name] = innovation_p_value(innovations(target, samples, requests))
    return Exactness(p_values, level)


def innovations(target: Target, samples: Sequence[Sample], requests: Sequence[Request]) -> Tensor:
    """What each stochastic step added to its mean, in units of σ, the initial state before them.

    Args:
        target: what was sampled.
        samples: made with ``record_steps=range(N + 1)``.
        requests: in the same order; the target's conditioning.

    Returns:
        float64 [samples, 1 + stochastic steps, dimensions].
    """
    transitions = target.transitions
    states = torch.stack([torch.stack([sample.states[n] for n in range(len(transitions) + 1)]) for sample in samples])
    conditioning = target.condition(requests)
    found = [states[:, 0].double()]
    for n in range(len(transitions)):
        if transitions.sigma[n] > 0:
            step = torch.full((len(samples),), n)
            prediction = target.denoise(states[:, n], step, conditioning).double()
            mean = transitions.a[n] * states[:, n].double() + transitions.b[n] * prediction
            found.append((states[:, n + 1].double() - mean) / transitions.sigma[n])
    return torch.stack(found, dim=1).flatten(2)


def innovation_p_value(w: Tensor) -> float:
    """Whether innovations are independent N(0, 1): one p-value, Bonferroni-corrected over every statistic.

    Means of the normalised Hermite polynomials H_1 … H_4 of each coordinate, products H_a(w_n) H_b(w_{n+k}) for k ≤ 3,
    each combined over steps as a sum and as χ²; and Kolmogorov–Smirnov of each step's first coordinate.

    Args:
        w: float64 [samples, steps, dimensions].
    """
    count, steps, _ = w.shape
    hermite = _hermite(w)  # [orders, samples, steps, dimensions]
    p_values = [_combined(hermite[order].mean(0) * math.sqrt(count)) for order in range(ORDERS)]
    for lag in range(1, min(LAGS, steps - 1) + 1):
        for first in range(ORDERS):
            for second in range(ORDERS - first - 2 + 1):
                product = hermite[first][:, :-lag] * hermite[second][:, lag:]
                p_values.append(_combined(product.mean(0) * math.sqrt(count)))
    p_values.append(_kolmogorov_smirnov(w[:, :, 0]))
    every = torch.cat([values.flatten() for values in p_values])
    return min(1.0, float(every.min()) * len(every))


def _hermite(w: Tensor) -> list[Tensor]:
    """Normalised probabilists' Hermite polynomials, H_1 … H_ORDERS, each of mean 0 and variance 1 under N(0, 1)."""
    polynomials = [torch.ones_like(w), w]
    for order in range(1, ORDERS):
        polynomials.append(w * polynomials[order] - order * polynomials[order - 1])
    return [polynomials[order] / math.sqrt(math.factorial(order)) for order in range(1, ORDERS + 1)]


def _combined(z: Tensor) -> Tensor:
    """Two-sided p-values of standard normal z [steps, dimensions], over steps by sum and by χ²: [2, dimensions]."""
    steps = z.shape[0]
    by_sum = torch.special.erfc((z.sum(0) / math.sqrt(steps)).abs() / math.sqrt(2))
    by_square = torch.special.gammaincc(z.new_tensor(steps / 2), z.square().sum(0) / 2)
    return torch.stack([by_sum, by_square])


def _kolmogorov_smirnov(w: Tensor) -> Tensor:
    """P-value of each column of w [samples, steps] against N(0, 1), asymptotic in Stephens' form: [steps]."""
    count = w.shape[0]
    cdf = torch.special.ndtr(w.sort(0).values)
    rank = torch.arange(1, count + 1, dtype=w.dtype)[:, None]
    distance = torch.maximum((rank / count - cdf).amax(0), (cdf - (rank - 1) / count).amax(0))
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    k = torch.arange(1, 101, dtype=w.dtype)[:, None]
    series = 2 * ((-1) ** (k - 1) * torch.exp(-2 * k**2 * scaled**2)).sum(0)
    return torch.where(scaled < 0.2, 1.0, series).clamp(0, 1)
