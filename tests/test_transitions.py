import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdiff import Transitions


def cosine(steps: int) -> torch.Tensor:
    alpha_bar = torch.cos(torch.pi / 2 * (1 - torch.arange(steps, dtype=torch.float64) / steps)) ** 2
    alpha_bar[0] = 0
    return alpha_bar


def linear_beta(steps: int) -> torch.Tensor:
    return torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps, dtype=torch.float64), 0).flip(0)


@given(steps=st.integers(1, 300), eta=st.floats(0, 1), zero=st.booleans())
@settings(derandomize=True, deadline=None)
def test_ddim_keeps_the_marginals(steps: int, eta: float, zero: bool) -> None:
    """With the true x, a step takes N(αx, s²) to N(α'x, s'²), whatever η."""
    alpha_bar = cosine(steps) if zero else linear_beta(steps)
    table = Transitions.ddim(alpha_bar, eta)
    following = torch.cat([alpha_bar[1:], torch.ones(1, dtype=torch.float64)])
    torch.testing.assert_close(table.a * table.alpha + table.b, following.sqrt(), rtol=1e-12, atol=1e-12)
    variance = (table.a * table.noise_std) ** 2 + table.sigma**2
    torch.testing.assert_close(variance, 1 - following, rtol=1e-12, atol=1e-12)


def test_ddpm_is_the_posterior_of_ho_et_al() -> None:
    """Equations 6 and 7 of arXiv 2006.11239, step by step."""
    alpha_bar = linear_beta(1000)
    small, large = Transitions.ddpm(alpha_bar), Transitions.ddpm(alpha_bar, "fixed_large")
    for n in range(999):
        now, following = float(alpha_bar[n]), float(alpha_bar[n + 1])
        beta = 1 - now / following
        assert small.b[n] == pytest.approx(math.sqrt(following) * beta / (1 - now), rel=1e-9)
        assert small.a[n] == pytest.approx(math.sqrt(1 - beta) * (1 - following) / (1 - now), rel=1e-9)
        assert small.sigma[n] ** 2 == pytest.approx(beta * (1 - following) / (1 - now), rel=1e-9)
        assert large.sigma[n] ** 2 == pytest.approx(beta, rel=1e-9)
    assert torch.equal(small.a, large.a)
    assert small.sigma[-1] == large.sigma[-1] == 0


@given(steps=st.integers(1, 100), eps=st.floats(0, 2))
@settings(derandomize=True, deadline=None)
def test_churn_keeps_the_mean_and_has_deterministic_ends(steps: int, eps: float) -> None:
    t = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    table = Transitions.churn(t, eps)
    torch.testing.assert_close(table.a * table.alpha + table.b, 1 - t[1:], rtol=1e-12, atol=1e-12)
    assert table.sigma[0] == table.sigma[-1] == 0
    if eps > 1e-100:
        assert (table.sigma[1:-1] > 0).all()


def test_churn_follows_its_stochastic_differential_equation() -> None:
    """For Gaussian data the law after many small steps is the interpolant's own, whatever the churn."""
    variance = 0.25  # of x; then x̂ = y α v / (α² v + s²)
    for eps in (0.0, 0.5, 1.0):
        table = Transitions.churn(torch.linspace(1, 0, 2001, dtype=torch.float64), eps)
        spread = torch.ones((), dtype=torch.float64)
        for n in range(2000):
            gain = table.alpha[n] * variance / (table.alpha[n] ** 2 * variance + table.noise_std[n] ** 2)
            spread = spread * (table.a[n] + table.b[n] * gain) ** 2 + table.sigma[n] ** 2
        assert float(spread) == pytest.approx(variance, rel=5e-3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Transitions.ddim(torch.tensor([0.5, 0.4])), "rise strictly"),
        (lambda: Transitions.ddim(torch.tensor([0.5, 1.0])), "rise strictly"),
        (lambda: Transitions.ddim(torch.tensor([float("nan"), 0.5])), "rise strictly"),
        (lambda: Transitions.ddim(torch.tensor([])), "non-empty"),
        (lambda: Transitions.ddim(torch.tensor([0.5]), eta=1.5), "eta"),
        (lambda: Transitions.ddpm(torch.tensor([0.5]), "learned"), "learned"),  # type: ignore[arg-type]
        (lambda: Transitions.ddim(torch.tensor([0.1, 0.5]), next_alpha_bar=torch.tensor([0.5])), "next_alpha_bar"),
        (lambda: Transitions.ddim(torch.tensor([0.1, 0.5]), next_alpha_bar=torch.tensor([0.5, 0.4])), "rise strictly"),
        (lambda: Transitions.churn(torch.tensor([1.1, 0.0])), "from 1 or less to 0"),
        (lambda: Transitions.churn(torch.tensor([0.9, 0.1])), "from 1 or less to 0"),
        (lambda: Transitions.churn(torch.tensor([1.0, 0.0]), eps=-1), "eps"),
        (lambda: Transitions(*[torch.zeros(3)] * 6), "float64"),
    ],
)
def test_bad_tables_are_refused(make: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()  # type: ignore[operator]
