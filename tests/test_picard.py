"""The Picard drafter and the Kalman gain keep the law, whatever the gain; and the biases that are near them are seen.

The innovation test on 20,000 paths each, with fixed seeds. Every configuration has a false-alarm rate of LEVEL; over
the fewer than 100 here the family-wise rate is under 1e-3.
"""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from laws import COUNT, LEVEL, POWER, draw, joint, ks_p_value, mmd_p_value
from torch import Tensor
from toy import mixture

import specdiff.gain
from specdiff import Gain, Request, Sampler, Transitions, calibrate
from specdiff.drafters import ReusingDrafter
from specdiff.targets import GaussianMixture
from specdiff.testing import innovation_p_value, innovations
from specdiff.verification import Block

# steps and draft length: from one draft to more than the horizon
SIZES = [(12, 1), (12, 2), (16, 5), (16, 12), (40, 31), (8, 12)]


@cache
def target_of(steps: int, process: str = "ddpm") -> GaussianMixture:
    return mixture(steps, 2, 4, process)


def gain_of(target: GaussianMixture, kind: str) -> str | Gain:
    if kind == "none":
        return "none"
    right = calibrate(target, 64)
    return right if kind == "right" else dataclasses.replace(right, shrinkage=10 * right.shrinkage)


def p_value(target: GaussianMixture, **settings: Any) -> float:
    samples, requests = draw(target, 0, COUNT, **settings)
    return innovation_p_value(innovations(target, samples, requests))


@pytest.mark.parametrize("gain", ["none", "right", "ten times"])
@pytest.mark.parametrize("verification", ["token", "reflection"])
@pytest.mark.parametrize(("steps", "draft_length"), SIZES)
def test_picard_is_exact(steps: int, draft_length: int, verification: str, gain: str) -> None:
    target = target_of(steps)
    settings = {"drafter": "picard", "verification": verification, "draft_length": draft_length}
    assert p_value(target, gain=gain_of(target, gain), **settings) > LEVEL


@pytest.mark.parametrize("process", ["churn-0.3", "ends-in-noise", "ddim-0.5"])
def test_picard_is_exact_under_other_processes(process: str) -> None:
    target = target_of(16, process)
    settings = {"drafter": "picard", "verification": "reflection", "draft_length": 5}
    assert p_value(target, gain=calibrate(target, 64), **settings) > LEVEL


@pytest.mark.parametrize("verification", ["token", "reflection", "block"])
@pytest.mark.parametrize("gain", ["right", "ten times"])
def test_free_with_a_gain_is_exact(verification: str, gain: str) -> None:
    target = target_of(16)
    settings = {"drafter": "free", "verification": verification, "draft_length": 5}
    assert p_value(target, gain=gain_of(target, gain), **settings) > LEVEL


def test_picard_has_the_sequential_sampler_s_law() -> None:
    """KS and MMD on the joint of an intermediate and the final state, against an independent sequential run."""
    target = target_of(16)
    sequential, _ = draw(target, 10_000_000, COUNT, verification="none")
    settings = {"drafter": "picard", "verification": "reflection", "draft_length": 12}
    samples, _ = draw(target, 0, COUNT, gain=calibrate(target, 64), **settings)
    assert ks_p_value(joint(samples, 8), joint(sequential, 8)) > LEVEL
    assert mmd_p_value(joint(samples, 8), joint(sequential, 8)) > LEVEL


class OldNoiseBlock(Block):
    """Block verification that reuses noise, as Picard must; that is the bias."""

    fresh_noise = False


def picard(target: GaussianMixture) -> Any:
    return partial(ReusingDrafter, target.transitions, kind="picard", held="x0", reuse="rejected", gain=None)


def test_sees_picard_forced_under_block() -> None:
    target = target_of(16)
    assert p_value(target, drafter=picard(target), verification=OldNoiseBlock(), draft_length=5) < POWER


class Peeking(ReusingDrafter):
    """Biased: drafts a step from the evaluation after it, whose state that step's own noise has moved."""

    def _node(self, step: Tensor) -> Tensor:
        return super()._node(step + 1)


def test_sees_a_mean_that_peeks_downstream() -> None:
    target = target_of(16)
    peeking = partial(Peeking, target.transitions, kind="picard", held="x0", reuse="rejected", gain=None)
    assert p_value(target, drafter=peeking, verification="reflection", draft_length=5) < POWER


def test_calibration_uses_no_number_that_an_image_is_made_of() -> None:
    """Else a draft's mean would depend on noise of steps to come."""
    target = target_of(12)
    samples, requests = draw(target, 0, 8, verification="none")
    states = [state for state, _ in specdiff.gain._trajectory(target, requests, torch.device("cpu"))]
    for n, state in enumerate(states):
        assert not (state == torch.stack([sample.states[n] for sample in samples])).any()


def test_picard_under_block_is_refused() -> None:
    with pytest.raises(ValueError, match="biased under block"):
        Sampler(target_of(8), drafter="picard", verification="block")


def test_gain_of_a_gaussian_is_its_posterior_covariance() -> None:
    """For one isotropic Gaussian λC = λτ²/(1 + λτ²), and with that gain every draft is the target's own step."""
    tau = 0.5
    target = GaussianMixture(torch.zeros(1, 8), torch.full((1,), tau), torch.ones(1), target_of(30).transitions)
    gain = calibrate(target, 400)
    expected = gain.snr * tau**2 / (1 + gain.snr * tau**2)
    # smoothing over steps moves the ends a little
    torch.testing.assert_close(gain.shrinkage.flatten().double(), expected, rtol=0, atol=0.03)
    snr = target.transitions.snr[1:]
    exact = Gain(snr, (snr * tau**2 / (1 + snr * tau**2)).float().view(-1, 1))
    for drafter in ("free", "picard"):
        sampler = Sampler(target, drafter=drafter, gain=exact, verification="reflection", draft_length=9, lanes=20)
        result = sampler.sample([Request(str(i), i) for i in range(20)])
        assert result.stats.rounds == 20 * 4  # 1 + 10 + 10 + 9: everything is kept


def test_the_mixture_of_the_issue() -> None:
    """Five modes in 512 dimensions, T = 30, γ = 12: at least 3.5 at ε = 0.06 and 3.6 at ε = 0.3."""
    generator = np.random.default_rng(20260714)
    means, stds = generator.uniform(-2, 2, (5, 512)), generator.uniform(0.1, 0.25, 5)
    for eps, least in ((0.06, 3.5), (0.3, 3.6)):
        transitions = Transitions.churn(torch.linspace(1, 0, 31, dtype=torch.float64), eps)
        target = GaussianMixture(torch.tensor(means), torch.tensor(stds), torch.ones(5), transitions)
        sampler = Sampler(
            target, drafter="picard", verification="reflection", gain=calibrate(target, 64), draft_length=12, lanes=128
        )
        result = sampler.sample([Request(str(i), i) for i in range(256)])
        assert result.stats.sequential_speedup is not None
        assert result.stats.sequential_speedup >= least
