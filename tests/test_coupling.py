"""The residual's mass and quantile against mpmath and against plain rejection sampling."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specdiff.coupling import log_residual_mass, residual_quantile

ALPHAS = [1e-3, 0.1, 0.5, 0.9, 1.0]
DELTAS = [1e-6, 1e-3, 0.1, 1.0, 5.0, 30.0]


def double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def mass_below(s: mpmath.mpf, alpha: mpmath.mpf, delta: mpmath.mpf) -> mpmath.mpf:
    return alpha * mpmath.ncdf(s) - mpmath.ncdf(s - delta)


@pytest.fixture(autouse=True)
def _precision() -> object:
    with mpmath.workdps(80):
        yield


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("delta", DELTAS)
def test_mass_agrees_with_mpmath(alpha: float, delta: float) -> None:
    log_alpha = double(alpha).log()
    exact_alpha, exact_delta = mpmath.exp(mpmath.mpf(log_alpha.item())), mpmath.mpf(delta)
    edge = mpmath.log(exact_alpha) / exact_delta + exact_delta / 2
    expected = mpmath.log(mass_below(edge, exact_alpha, exact_delta))
    found = log_residual_mass(log_alpha, double(delta)).item()
    if expected > math.log(2.3e-308):
        assert abs(mpmath.expm1(found - expected)) < 1e-11
    else:
        assert abs(found / expected - 1) < 1e-12


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("delta", DELTAS)
def test_quantile_agrees_with_mpmath(alpha: float, delta: float) -> None:
    v = torch.tensor([1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6], dtype=torch.float64)
    log_alpha = double(alpha).log()
    found = residual_quantile(log_alpha.expand(8), double(delta).expand(8), v)
    exact_alpha, exact_delta = mpmath.exp(mpmath.mpf(log_alpha.item())), mpmath.mpf(delta)
    edge = mpmath.log(exact_alpha) / exact_delta + exact_delta / 2
    mass = mass_below(edge, exact_alpha, exact_delta)
    for s, uniform in zip(found.tolist(), v.tolist(), strict=True):
        # one Newton step of the exact distribution function tells how far s is from the quantile
        density = exact_alpha * mpmath.npdf(s) - mpmath.npdf(s - exact_delta)
        error = (mass_below(mpmath.mpf(s), exact_alpha, exact_delta) - mpmath.mpf(uniform) * mass) / density
        # where S underflows float64, which no sampler will ever meet, s* is near −10⁶ and its own rounding shows
        assert abs(error) < (1e-8 if mass > 2.3e-308 else 1e-7), (s, uniform)


@given(
    log_alpha=st.floats(-800, 0) | st.just(0.0) | st.floats(-1e-9, 0),
    delta=st.floats(0, 1e3) | st.just(0.0) | st.floats(0, 1e-300),
    v=st.floats(1e-16, 1 - 1e-16),
)
@settings(derandomize=True, deadline=None, max_examples=1000)
def test_never_nan(log_alpha: float, delta: float, v: float) -> None:
    mass = log_residual_mass(double(log_alpha), double(delta))
    assert mass <= 1e-12
    assert not mass.isnan()
    s = residual_quantile(double(log_alpha), double(delta), double(v))
    assert not s.isnan()
    assert s <= log_alpha / max(delta, 1e-150) + delta / 2 + 1e-9


@given(alpha=st.floats(1e-3, 1), delta=st.floats(1e-3, 8))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_quantile_inverts_the_distribution_function(alpha: float, delta: float) -> None:
    v = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    s = residual_quantile(double(math.log(alpha)).expand(25), double(delta).expand(25), v)
    with mpmath.workdps(50):
        exact_alpha, exact_delta = mpmath.exp(mpmath.mpf(math.log(alpha))), mpmath.mpf(delta)
        mass = mass_below(mpmath.log(exact_alpha) / exact_delta + exact_delta / 2, exact_alpha, exact_delta)
        for point, expected in zip(s.tolist(), v.tolist(), strict=True):
            below = mass_below(mpmath.mpf(point), exact_alpha, exact_delta) / mass
            # the rounding of s itself moves the distribution function where its density is high
            assert float(below) == pytest.approx(expected, abs=1e-9 + 1e-15 * abs(math.log(alpha)) / delta**2)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("delta", DELTAS)
def test_quantile_agrees_with_rejection_sampling(alpha: float, delta: float) -> None:
    """Keep s ~ N(0, 1) with probability max(0, 1 − p/(αq)); KS at 1e-4 each, family-wise 3e-3."""
    log_alpha = double(alpha).log()
    if log_residual_mass(log_alpha, double(delta)) - log_alpha < math.log(1e-3):
        pytest.skip("too rare for rejection sampling")
    generator = torch.Generator().manual_seed(1)
    plain = torch.randn(4_000_000, generator=generator, dtype=torch.float64)
    chance = -torch.expm1(plain * delta - delta**2 / 2 - log_alpha)
    kept = plain[torch.rand(plain.shape, generator=generator, dtype=torch.float64) < chance][:50_000]
    v = torch.rand(kept.shape, generator=generator, dtype=torch.float64)
    drawn = residual_quantile(log_alpha.expand(len(v)), double(delta).expand(len(v)), v)
    assert len(kept) > 1000
    assert stats.ks_2samp(kept.numpy(), drawn.numpy()).pvalue > 1e-4


def test_rejection_sampling_would_see_a_wrong_alpha() -> None:
    """Power of the test above: the residual of α = 1 is not that of α = 0.5."""
    v = torch.linspace(1e-5, 1 - 1e-5, 50_000, dtype=torch.float64)
    ones = torch.ones_like(v)
    right = residual_quantile(math.log(0.5) * ones, ones, v)
    wrong = residual_quantile(0 * ones, ones, v)
    assert stats.ks_2samp(right.numpy(), wrong.numpy()).pvalue < 1e-20
