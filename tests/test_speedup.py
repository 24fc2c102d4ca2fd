"""Sequential speed-ups that others have published for the same target and process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdiff import Request, Sampler, Transitions
from specdiff.targets import GaussianMixture


@pytest.fixture(scope="module")
def mixture_512() -> GaussianMixture:
    """Five isotropic modes in 512 dimensions, 30 even steps of the interpolant with churn 0.06."""
    generator = np.random.default_rng(20260714)
    means = torch.from_numpy(generator.uniform(-2, 2, (5, 512)))
    stds = torch.from_numpy(generator.uniform(0.1, 0.25, 5))
    t = torch.linspace(1, 0, 31, dtype=torch.float64)
    return GaussianMixture(means, stds, torch.ones(5), Transitions.churn(t, 0.06))


@pytest.mark.parametrize(
    ("held", "draft_length", "least"),
    [("v", 4, 1.75), ("x0", 12, 2.1)],  # public reference for the first: 1.77
)
def test_reflection_with_the_free_drafter(
    mixture_512: GaussianMixture, held: str, draft_length: int, least: float
) -> None:
    sampler = Sampler(
        mixture_512, verification="reflection", drafter="free", held=held, reuse="rejected",
        draft_length=draft_length, lanes=64,
    )  # fmt: skip
    stats = sampler.sample([Request(str(i), i) for i in range(256)]).stats
    assert stats.sequential_speedup is not None
    assert stats.sequential_speedup >= least
