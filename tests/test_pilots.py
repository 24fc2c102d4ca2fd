"""Pilots: what they choose, and that the choice knows nothing of any image."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy import cosine, mixture

from specdiff import Request, Sampler, Transitions, pilot
from specdiff.noise import normals, uniforms
from specdiff.targets import GaussianMixture


def wide() -> GaussianMixture:
    """Of 8192 dimensions, in 8 steps."""
    means = torch.randn(2, 8192, generator=torch.Generator().manual_seed(0))
    return GaussianMixture(0.5 * means, torch.full((2,), 0.5), torch.ones(2), Transitions.ddim(cosine(8)))


def test_what_a_pilot_chooses() -> None:
    few = pilot(wide(), [Request("a", 0)], draft_length=3)
    assert few.verification == "none"
    assert few.stats.hardly_helped
    many = pilot(mixture(60, 2, 3), [Request("a", 0)], draft_length=3, verification="token")
    assert many.verification == "token"
    assert many.stats.samples == 4
    no_noise = mixture(6, 2, 3)
    no_noise.transitions = Transitions.ddim(cosine(6), eta=0.0)
    assert pilot(no_noise, [Request("a", 0)], draft_length=3).verification == "none"


def test_a_pilot_is_the_same_whatever_the_seeds_and_lanes() -> None:
    requests = [Request("a", 5), Request("b", 6)]
    one = pilot(mixture(30, 3, 3), requests, draft_length=3, lanes=7)
    other = pilot(mixture(30, 3, 3), [replace(each, seed=each.seed + 99) for each in requests], draft_length=3)
    assert one == other


def test_a_pilots_numbers_belong_to_no_image() -> None:
    """Seeds below 0 have streams of their own: standard normal, and unlike those of seeds with the same low bits."""
    seeds = torch.tensor([-1, -2, 2**63 - 1, 2**63 - 2, 2**32 - 1, 2**32 - 2])
    zero = torch.zeros_like(seeds)
    drawn = normals(seeds, zero, zero, 100_000)
    assert drawn.isfinite().all()
    assert float(drawn.mean(1).abs().max()) < 5 / 100_000**0.5
    assert float((drawn.std(1) - 1).abs().max()) < 5 / 200_000**0.5
    correlation = torch.corrcoef(drawn) - torch.eye(6)
    assert float(correlation.abs().max()) < 5 / 100_000**0.5
    u, v = uniforms(seeds, zero, zero)
    assert ((u > 0) & (u < 1) & (v > 0) & (v < 1)).all()
    with pytest.raises(ValueError, match="seed must be"):
        Request("a", -1)


def test_auto_is_no_rule_of_a_sampler() -> None:
    with pytest.raises(ValueError, match=r"settled before a sampler is made: see specdiff.pilot"):
        Sampler(mixture(6, 2, 3), verification="auto")
