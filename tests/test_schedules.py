"""Every step against diffusers' schedulers, and against formulas where diffusers has none."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EDMEulerScheduler, EulerDiscreteScheduler
from torch import Tensor

from specdiff import Transitions, schedules

BETAS = [
    ("linear", 1e-4, 0.02),
    ("scaled_linear", 0.00085, 0.012),
    ("squaredcos_cap_v2", 1e-4, 0.02),
    ("sigmoid", 1e-4, 0.02),
]
SPACINGS = [("leading", 0), ("leading", 1), ("trailing", 0), ("linspace", 0)]
STEPS = [1, 2, 7, 10, 61]  # T is no multiple of 7; at 61 diffusers' trailing has a step too many
TRAIN = 1000
EPS = torch.finfo(torch.float32).eps


def alpha_bar(beta: tuple[str, float, float], zero_snr: bool) -> Tensor:
    table = schedules.beta_schedule(beta[0], TRAIN, *beta[1:])
    return schedules.alpha_bar_of(schedules.zero_terminal_snr(table) if zero_snr else table)


def scheduler(kind: Any, beta: tuple[str, float, float], zero_snr: bool, double: bool, **settings: Any) -> Any:
    """One of diffusers', on its own float32 tables or on the same numbers in float64."""
    if kind is DDIMScheduler and beta[0] == "sigmoid":  # which that one does not know by name
        settings["trained_betas"] = DDPMScheduler(TRAIN, *beta[1:], "sigmoid").betas.tolist()
    else:
        settings["beta_schedule"] = beta[0]
    made = kind(
        TRAIN, *beta[1:], clip_sample=False, prediction_type="sample", rescale_betas_zero_snr=zero_snr, **settings
    )
    if double:
        made.alphas_cumprod = made.alphas_cumprod.double()
        for name in ("one", "final_alpha_cumprod"):
            if hasattr(made, name):
                setattr(made, name, getattr(made, name).double())
    return made


def assert_same_steps(found: schedules.Schedule, theirs: Any, std: Any, double: bool, **options: Any) -> None:
    """Mean and standard deviation of every step; the mean at y = 1, x̂ = 0 and at y = 0, x̂ = 1.

    diffusers rounds numbers of order 1 (ᾱ / ᾱ', 1 − ᾱ' − σ²) whose difference from 1 it then divides by s² or takes
    the root k of: so coefficients are compared in units of that. In float64 the same shows that the formulas agree.
    """
    kind = torch.float64 if double else torch.float32
    table, steps = found.transitions, len(found.transitions)
    assert found.timesteps.tolist() == theirs.timesteps[:steps].tolist()
    y, x = torch.tensor([[[1.0]], [[0.0]]], dtype=kind), torch.tensor([[[0.0]], [[1.0]]], dtype=kind)
    for n, t in enumerate(theirs.timesteps[:steps]):
        mean = mean_of(theirs, x, t, y, options)
        s = float(table.noise_std[n])
        k = float(table.a[n]) * s
        unit = 1e-13 if double else 4 * EPS
        if mean.isnan().any():  # diffusers took the root of 1 − ᾱ' − σ² = −rounding
            assert options == {"eta": 1.0}
            assert k < unit**0.5
        else:
            coefficients = unit / s**2 + min(unit / max(k, unit), unit**0.5) / s
            assert float(mean[0]) == pytest.approx(float(table.a[n]), abs=coefficients)
            assert float(mean[1]) == pytest.approx(float(table.b[n]), abs=coefficients)
        # variances: a standard deviation near 0 is the root of a rounding error
        assert float(std(t)) ** 2 == pytest.approx(float(table.sigma[n]) ** 2, abs=unit)


def mean_of(theirs: Any, output: Tensor, t: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """diffusers' step without its noise: DDIM takes noise of ours, DDPM draws the same twice, once negated."""
    if isinstance(theirs, DDIMScheduler):
        return theirs.step(output, t, y, variance_noise=torch.zeros_like(y), **options).prev_sample
    both = [
        theirs.step(sign * output, t, sign * y, generator=torch.Generator().manual_seed(0)).prev_sample
        for sign in (1, -1)
    ]
    return (both[0] - both[1]) / 2  # the step is linear in (y, x̂), and its noise is the same


@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("zero_snr", [False, True], ids=["", "zero-snr"])
@pytest.mark.parametrize(("spacing", "offset"), SPACINGS)
@pytest.mark.parametrize("beta", BETAS, ids=lambda beta: beta[0])
def test_ddim(beta: Any, spacing: str, offset: int, zero_snr: bool, double: bool) -> None:
    for to_one in (True, False):
        theirs = scheduler(
            DDIMScheduler, beta, zero_snr, double,
            timestep_spacing=spacing, steps_offset=offset, set_alpha_to_one=to_one,
        )  # fmt: skip
        for steps in STEPS:
            theirs.set_timesteps(steps)
            for eta in (0.0, 0.5, 1.0):
                found = schedules.ddim(
                    alpha_bar(beta, zero_snr), steps, eta=eta, spacing=spacing, offset=offset, set_alpha_to_one=to_one
                )

                def std(t: Tensor, eta: float = eta, steps: int = steps, theirs: Any = theirs) -> Tensor:
                    return eta * theirs._get_variance(t, t - TRAIN // steps) ** 0.5

                assert_same_steps(found, theirs, std, double, eta=eta)


@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("zero_snr", [False, True], ids=["", "zero-snr"])
@pytest.mark.parametrize(("spacing", "offset"), SPACINGS)
@pytest.mark.parametrize("beta", BETAS, ids=lambda beta: beta[0])
def test_ddpm(beta: Any, spacing: str, offset: int, zero_snr: bool, double: bool) -> None:
    for variance in schedules.VARIANCES:
        # its own fixed_large_log draws noise times the root of a logarithm, which is negative
        drawn = "fixed_large" if variance == "fixed_large_log" else variance
        theirs = scheduler(
            DDPMScheduler, beta, zero_snr, double,
            timestep_spacing=spacing, steps_offset=offset, variance_type=drawn,
        )  # fmt: skip
        for steps in STEPS:
            theirs.set_timesteps(steps)
            found = schedules.ddpm(alpha_bar(beta, zero_snr), steps, variance=variance, spacing=spacing, offset=offset)

            def std(t: Tensor, variance: str = variance, theirs: Any = theirs) -> Tensor:
                if t == 0:
                    return torch.zeros(())
                given = theirs._get_variance(t, variance_type=variance)
                return {"fixed_small_log": given, "fixed_large_log": torch.exp(given / 2)}.get(variance, given**0.5)

            assert_same_steps(found, theirs, std, double)


def test_the_noise_that_diffusers_draws_is_what_its_variance_says() -> None:
    """By the difference of two steps with known noise, for each of its schedulers."""
    beta, y = BETAS[0], torch.zeros(1, 1, 100)
    for variance in ("fixed_small", "fixed_small_log", "fixed_large"):
        theirs = scheduler(DDPMScheduler, beta, False, False, variance_type=variance)
        theirs.set_timesteps(10)
        found = schedules.ddpm(alpha_bar(beta, False), 10, variance=variance).transitions
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
        for n, t in enumerate(theirs.timesteps):
            drawn = theirs.step(y, t, y, generator=torch.Generator().manual_seed(3)).prev_sample
            torch.testing.assert_close(drawn, found.sigma[n].float() * noise, rtol=1e-4, atol=1e-6)
    theirs = scheduler(DDIMScheduler, beta, False, False)
    theirs.set_timesteps(10)
    found = schedules.ddim(alpha_bar(beta, False), 10, eta=0.5).transitions
    for n, t in enumerate(theirs.timesteps):
        drawn = theirs.step(y, t, y, eta=0.5, variance_noise=noise).prev_sample
        torch.testing.assert_close(drawn, found.sigma[n].float() * noise, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
def test_predictions_of_every_kind(kind: str, clip: bool) -> None:
    """The network's output converted here, and the step, against diffusers' own conversion and step."""
    beta = BETAS[1]
    generator = torch.Generator().manual_seed(0)
    y, output = torch.randn(2, 5, 1, 3, generator=generator, dtype=torch.float64)
    for made, options, found in (
        (DDPMScheduler, {"generator": None}, schedules.ddpm(alpha_bar(beta, False), 20)),
        (
            DDIMScheduler,
            {"eta": 0.5, "use_clipped_model_output": True},
            schedules.ddim(alpha_bar(beta, False), 20, eta=0.5),
        ),
    ):
        theirs = scheduler(made, beta, False, True)
        theirs.register_to_config(prediction_type=kind, clip_sample=clip)
        theirs.set_timesteps(20)
        table = found.transitions
        for n, t in enumerate(theirs.timesteps):
            of_state, of_output = schedules.clean_factors(kind, table.alpha[n], table.noise_std[n])
            clean = of_state * y + of_output * output
            clean = clean.clamp(-1, 1) if clip else clean
            mean = table.a[n] * y + table.b[n] * clean
            expected = mean_of(theirs, output, t, y, options)
            torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("beta", BETAS, ids=lambda beta: beta[0])
def test_tables_of_beta(beta: Any) -> None:
    for zero_snr in (False, True):
        theirs = scheduler(DDPMScheduler, beta, zero_snr, False)
        assert torch.equal(alpha_bar(beta, zero_snr), theirs.alphas_cumprod.double())
    assert alpha_bar(beta, True)[-1] == 0


def test_a_spurious_timestep_is_left_out() -> None:
    theirs = scheduler(DDPMScheduler, BETAS[0], False, False, timestep_spacing="trailing")
    theirs.set_timesteps(61)
    assert theirs.timesteps[-1] == -1
    assert theirs.timesteps[:-1].tolist() == schedules.timesteps("trailing", 61, TRAIN).tolist()


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
def test_any_number_of_steps(spacing: str) -> None:
    for train in (7, 50, 100):
        table = schedules.alpha_bar_of(schedules.beta_schedule("linear", train))
        for steps in range(1, train + 1):
            at = schedules.timesteps(spacing, steps, train)
            assert len(at) == steps
            assert (at.diff() < 0).all()
            for found in (schedules.ddim(table, steps, spacing=spacing), schedules.ddpm(table, steps, spacing=spacing)):
                assert len(found.transitions) == steps


def test_karras_grid_is_that_of_diffusers_euler_sampler() -> None:
    """Timesteps between whole ones, and with η = 0 the same mean: DDIM is Euler's method in x + σ ε."""
    for beta in BETAS[:3]:
        theirs = EulerDiscreteScheduler(TRAIN, *beta[1:], beta[0], prediction_type="sample", use_karras_sigmas=True)
        theirs.set_timesteps(12)
        found = schedules.ddim(alpha_bar(beta, False), 12, eta=0.0, spacing="karras")
        table = found.transitions
        torch.testing.assert_close(found.timesteps.float(), theirs.timesteps, rtol=1e-4, atol=1e-2)
        generator = torch.Generator().manual_seed(0)
        for n, t in enumerate(theirs.timesteps):
            y, x = torch.randn(2, 1, 50, generator=generator).double()
            expected = euler(theirs, x, t, y / table.alpha[n])
            following = table.alpha[n + 1] if n < 11 else torch.ones(())
            mean = (table.a[n] * y + table.b[n] * x) / following
            torch.testing.assert_close(mean, expected.double(), rtol=1e-4, atol=1e-4)


def euler(theirs: EulerDiscreteScheduler, x: Tensor, t: Tensor, state: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.config.prediction_type = "sample"
        return theirs.step(x, t, state).prev_sample


def test_karras_ancestral_steps_are_k_diffusions() -> None:
    """σ_up² = σ'² (σ² − σ'²) / σ² in the scale of x + σ ε."""
    table = schedules.ddpm(alpha_bar(BETAS[1], False), 12, spacing="karras").transitions
    sigma = table.noise_std / table.alpha
    up = table.sigma[:-1] / table.alpha[1:]
    expected = (sigma[1:] ** 2 * (sigma[:-1] ** 2 - sigma[1:] ** 2) / sigma[:-1] ** 2).sqrt()
    torch.testing.assert_close(up, expected, rtol=1e-10, atol=0)
    assert table.sigma[-1] == 0


def test_edm_without_churn_is_diffusers_edm_euler() -> None:
    """In EDM's scale, at every step: x + σ ξ is a state divided by alpha."""
    theirs = EDMEulerScheduler()
    theirs.set_timesteps(18)
    found = schedules.edm(18, 0.0)
    table = found.transitions
    torch.testing.assert_close(found.timesteps.float(), theirs.timesteps, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close((table.noise_std / table.alpha).float(), theirs.sigmas[:-1], rtol=1e-5, atol=0)
    assert (table.alpha[0] * 80, table.noise_std[0]) == (pytest.approx(1), 1)
    generator = torch.Generator().manual_seed(0)
    for n, sigma in enumerate(theirs.sigmas[:-1]):
        y, x = torch.randn(2, 50, generator=generator, dtype=torch.float64)
        state = y / table.alpha[n]
        expected = x + theirs.sigmas[n + 1] / sigma * (state - x)  # Euler's step of dx/dσ = (x − D) / σ
        following = table.alpha[n + 1] if n < 17 else torch.ones(())
        torch.testing.assert_close((table.a[n] * y + table.b[n] * x) / following, expected, rtol=1e-5, atol=1e-5)


def test_edm_churn_is_the_interpolants() -> None:
    """All rows but the first, whose state is scaled, are those of the grid t = σ / (1 + σ) continued to t = 1."""
    found = schedules.edm(18, 0.5).transitions
    t = torch.cat([found.noise_std[1:], torch.zeros(1)]).double()
    longer = Transitions.churn(torch.cat([torch.ones(1).double(), t]), 0.5)
    for name in ("a", "b", "sigma", "alpha", "noise_std", "snr"):
        assert torch.equal(getattr(found, name)[1:], getattr(longer, name)[1:])
    assert found.sigma[0] == 0


@pytest.mark.parametrize("process", ["vp", "interpolant", "edm"])
def test_velocity(process: str) -> None:
    """x = k y − c v, where v is α ε − s x on a variance-preserving path and ε − x on the others."""
    table = {
        "vp": lambda: schedules.ddpm(alpha_bar(BETAS[0], False), 20).transitions,
        "interpolant": lambda: Transitions.churn(torch.linspace(1, 0, 11)),
        "edm": lambda: schedules.edm(18, 0.5).transitions,
    }[process]()
    x, noise = torch.randn(2, len(table.a), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    velocity = table.alpha * noise - table.noise_std * x if process == "vp" else noise - x
    state = table.alpha * x + table.noise_std * noise
    torch.testing.assert_close(table.velocity_scale * state - table.velocity_noise * velocity, x)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda table: schedules.beta_schedule("laplace"), "laplace"),
        (lambda table: schedules.ddpm(table, 10, variance="learned"), "'learned'.*choose fixed_small or fixed_large"),
        (lambda table: schedules.ddpm(table, 10, variance="learned_range"), "learned_range.*choose"),
        (lambda table: schedules.ddpm(table, 10, variance="fixed"), "'fixed'"),
        (lambda table: schedules.ddim(table, 10, spacing="even"), "'even'"),
        (lambda table: schedules.ddim(table, 10, eta=2), "eta"),
        (lambda table: schedules.ddim(table, 0), "between 1 and"),
        (lambda table: schedules.ddpm(table, 1001), "between 1 and"),
        (lambda table: schedules.ddpm(table, 1000, offset=1), "steps_offset 1"),
        (lambda table: schedules.ddpm(table, 10, offset=-1), "steps_offset -1"),
        (lambda table: schedules.ddpm(table, 1, spacing="karras"), "between 2 and"),
        (lambda table: schedules.ddpm(alpha_bar(BETAS[0], True), 9, spacing="karras"), "zero terminal SNR"),
        (lambda table: schedules.edm(1, 0.5), "at least 2"),
        (lambda table: schedules.edm(18, 0.5, sigma_min=90), "larger to a smaller"),
        (lambda table: schedules.clean_factors("flow", table, table), "'flow'"),
        (lambda table: schedules.clean_factors("epsilon", table * 0, table), "signal-to-noise"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make(alpha_bar(BETAS[0], False))
