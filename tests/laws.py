"""Evidence that two sets of paths have one law, and that a set has its target's; fixed seeds throughout."""

from __future__ import annotations

from typing import Any

import torch
from scipy import stats
from torch import Tensor

from specdiff import Request, Sample, Sampler, Target

COUNT = 20_000
LEVEL = 1e-5
POWER = 1e-12


def draw(target: Target, first_seed: int, count: int, **settings: Any) -> tuple[list[Sample], list[Request]]:
    """All states of independent images, in lanes of a size that keeps memory small."""
    steps = len(target.transitions)
    sampler = Sampler(target, lanes=count, batch_rows=16_384, record_steps=range(steps + 1), **settings)
    requests = [Request(str(i), first_seed + i) for i in range(count)]
    return sampler.sample(requests).samples, requests


def joint(samples: list[Sample], middle: int) -> Tensor:
    """An intermediate state and the final one, float64 [samples, 2 · dimensions]."""
    last = max(samples[0].states)
    return torch.stack([torch.cat([s.states[middle].flatten(), s.states[last].flatten()]) for s in samples]).double()


def ks_p_value(a: Tensor, b: Tensor) -> float:
    """Two-sample KS on 16 random projections, Bonferroni-corrected."""
    directions = torch.randn(a.shape[1], 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = zip((a @ directions).T.numpy(), (b @ directions).T.numpy(), strict=True)
    return min(1.0, 16 * min(stats.ks_2samp(x, y).pvalue for x, y in pairs))


def mmd_p_value(a: Tensor, b: Tensor) -> float:
    """Two-sample test of 50 random Fourier features' means, by their joint χ² (Chwialkowski et al., 2015)."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.cat([a, b]).std(0) * a.shape[1] ** 0.5
    frequencies = torch.randn(a.shape[1], 25, generator=generator, dtype=torch.float64) / spread[:, None]
    features = [torch.cat([torch.cos(x @ frequencies), torch.sin(x @ frequencies)], dim=1) for x in (a, b)]
    difference = features[0].mean(0) - features[1].mean(0)
    covariance = features[0].T.cov() / len(a) + features[1].T.cov() / len(b)
    statistic = difference @ torch.linalg.solve(covariance, difference)
    return float(stats.chi2.sf(statistic, 50))
