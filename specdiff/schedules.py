"""From the noise a model was trained with to the steps it is sampled in: diffusers' schedules and EDM's σ grid.

What a schedule is called, and the arithmetic down to float32 tables of β, are diffusers' own, since its models were
trained with those numbers. Where its DDPMScheduler and DDIMScheduler contradict themselves, the functions here say so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from specdiff.transitions import Transitions

VARIANCES = {
    "fixed_small": "fixed_small",
    "fixed_small_log": "fixed_small",
    "fixed_large": "fixed_large",
    "fixed_large_log": "fixed_large",
}
"""diffusers' names and ours. Its ``_log`` variants are meant to be the same laws, computed through a logarithm; its own
``fixed_large_log`` takes the root of that logarithm, which is not a number, where this takes what is meant."""

RHO = 7.0


@dataclass(frozen=True)
class Schedule:
    """The steps of a sampler, and where in the training schedule each one stands.

    Attributes:
        timesteps: float64 [N], what the network is told; whole numbers but for ``karras``.
        transitions: the same steps' tables.
    """

    timesteps: Tensor
    transitions: Transitions


def beta_schedule(name: str = "linear", train_steps: int = 1000, start: float = 1e-4, end: float = 0.02) -> Tensor:
    """β at each training timestep, as diffusers makes it: float32 [train_steps].

    Args:
        name: ``linear``, ``scaled_linear``, ``squaredcos_cap_v2`` or ``sigmoid``.
        train_steps: T.
        start, end: β at the two ends; the cosine schedule has its own.

    Raises:
        ValueError: an unknown schedule.
    """
    if name == "linear":
        return torch.linspace(start, end, train_steps, dtype=torch.float32)
    if name == "scaled_linear":
        return torch.linspace(start**0.5, end**0.5, train_steps, dtype=torch.float32) ** 2
    if name == "sigmoid":
        return torch.sigmoid(torch.linspace(-6, 6, train_steps, dtype=torch.float32)) * (end - start) + start
    if name == "squaredcos_cap_v2":
        return _capped(lambda t: math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2, train_steps)
    known = "linear, scaled_linear, squaredcos_cap_v2 or sigmoid"
    raise ValueError(f"beta schedule must be {known}, not {name!r}; other tables of β can be given as they are")


def zero_terminal_snr(beta: Tensor) -> Tensor:
    """β rescaled so that nothing of the image is left at the last timestep (Lin et al., arXiv 2305.08891, algorithm 1).

    Args:
        beta: float32 [T].

    Returns:
        float32 [T]; the last is 1.
    """
    root = torch.cumprod(1 - beta, 0).sqrt()
    first, last = root[0].clone(), root[-1].clone()
    alpha_bar = ((root - last) * (first / (first - last))) ** 2
    return 1 - torch.cat([alpha_bar[:1], alpha_bar[1:] / alpha_bar[:-1]])


def alpha_bar_of(beta: Tensor) -> Tensor:
    """ᾱ, the running product of 1 − β: float64 [T], least noisy first.

    The product is rounded as in training, in the type of ``beta``.
    """
    return torch.cumprod(1 - beta, 0).double()


def ddim(
    alpha_bar: Tensor,
    steps: int,
    *,
    eta: float = 1.0,
    spacing: str = "leading",
    offset: int = 0,
    set_alpha_to_one: bool = True,
) -> Schedule:
    """The steps of diffusers' DDIMScheduler.

    That scheduler always steps down by T // N timesteps, which with ``linspace`` or ``trailing``, or where N does not
    divide T, is not where the next step starts. So do these. A clipped prediction is used for the noise, too, as with
    its ``use_clipped_model_output=True``. At zero SNR with η = 1 its step can be not a number, by the root of a
    rounding error; here that root is 0.

    Args:
        alpha_bar: ᾱ at the T training timesteps, least noisy first.
        steps: N, at most T.
        eta: share of the ancestral noise, 0 … 1.
        spacing: ``leading``, ``trailing``, ``linspace`` or ``karras``.
        offset: added to the timesteps of ``leading``.
        set_alpha_to_one: whether a step that leads below timestep 0 reaches ᾱ = 1; ᾱ of timestep 0 otherwise.
            ``karras`` always ends at 1.

    Raises:
        ValueError: an unknown spacing, or timesteps outside the training schedule.
    """
    if spacing == "karras":
        at, here = _karras(alpha_bar, steps)
        return Schedule(at, Transitions.ddim(here, eta))
    train_steps = len(alpha_bar)
    at = timesteps(spacing, steps, train_steps, offset)
    previous = at - train_steps // steps
    final = 1.0 if set_alpha_to_one else float(alpha_bar[0])
    following = torch.where(previous >= 0, alpha_bar[previous.clamp(min=0)], final)
    return Schedule(at.double(), Transitions.ddim(alpha_bar[at], eta, next_alpha_bar=following))


def ddpm(
    alpha_bar: Tensor, steps: int, *, variance: str = "fixed_small", spacing: str = "leading", offset: int = 0
) -> Schedule:
    """The steps of diffusers' DDPMScheduler, each to where the next one starts and the last to the clean image.

    Its ``fixed_large`` adds the noise of β after the last step, too, unless that stands at timestep 0. So do these, for
    the sake of one law. Its floor of 1e-20 under the variance is left out: it is there for a logarithm's sake.

    Args:
        alpha_bar: as for :func:`ddim`.
        steps: as for :func:`ddim`.
        variance: ``fixed_small`` or ``fixed_large``; with ``_log`` the same.
        spacing, offset: as for :func:`ddim`.

    Raises:
        ValueError: as for :func:`ddim`, or a variance that is unknown or learned.
    """
    if variance in ("learned", "learned_range"):
        raise ValueError(
            f"variance {variance!r} depends on the state, so drafts and target would not share a covariance; choose "
            "fixed_small or fixed_large in its place, which is another law than the model's own"
        )
    if variance not in VARIANCES:
        raise ValueError(f"variance must be one of {', '.join(VARIANCES)}, not {variance!r}")
    if spacing == "karras":
        at, here = _karras(alpha_bar, steps)
    else:
        whole = timesteps(spacing, steps, len(alpha_bar), offset)
        at, here = whole.double(), alpha_bar[whole]
    large = VARIANCES[variance] == "fixed_large"
    table = Transitions.ddpm(here, "fixed_large" if large else "fixed_small")
    if large and at[-1] > 0:
        sigma = table.sigma.clone()
        sigma[-1] = (1 - here[-1]).sqrt()
        table = dataclasses.replace(table, sigma=sigma)
    return Schedule(at, table)


def edm(steps: int, eps: float, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = RHO) -> Schedule:
    """Churned steps on EDM's grid of noise levels (Karras et al., arXiv 2206.00364, equation 5).

    By t = σ / (1 + σ), (x + σ ξ) / (1 + σ) is the interpolant (1 − t) x + t ξ. With eps = 0 these are EDM's Euler
    steps. A state y stands for y / alpha_n in EDM's own scale, at σ = noise_std_n / alpha_n; the first stands for
    σ_max ξ.

    Args:
        steps: N, at least 2; the last leads from sigma_min to 0.
        eps: share of churn, 0 … 1.
        sigma_min, sigma_max: ends of the grid.
        rho: how much denser the grid is at small σ.

    Returns:
        The schedule; its timesteps are EDM's own, ln σ / 4.

    Raises:
        ValueError: fewer than 2 steps, 0 < sigma_min < sigma_max does not hold, or eps is negative.
    """
    sigma = _karras_grid(steps, sigma_min, sigma_max, rho)
    t = torch.cat([sigma / (1 + sigma), sigma.new_zeros(1)])
    return Schedule(sigma.log() / 4, Transitions.churn(t, eps))


def timesteps(spacing: str, steps: int, train_steps: int, offset: int = 0) -> Tensor:
    """Whole training timesteps to step at, noisiest first (table 2 of arXiv 2305.08891): int64 [steps].

    ``trailing`` has no step too many where rounding gives diffusers one at timestep −1 (61 of 1000, for instance).

    Args:
        spacing: ``leading``, ``trailing`` or ``linspace``.
        steps: N, 1 … train_steps.
        train_steps: T.
        offset: added to those of ``leading``.

    Raises:
        ValueError: an unknown spacing, steps out of range, or an offset that leads outside the training schedule.
    """
    if not 1 <= steps <= train_steps:
        raise ValueError(f"steps must lie between 1 and the model's {train_steps}, not {steps}")
    if spacing == "leading":
        found = np.arange(steps)[::-1] * float(train_steps // steps) + offset
    elif spacing == "trailing":
        found = np.round(np.arange(train_steps, 0, -train_steps / steps))[:steps] - 1
    elif spacing == "linspace":
        found = np.linspace(0, train_steps - 1, steps).round()[::-1]
    else:
        raise ValueError(f"spacing must be leading, trailing, linspace or karras, not {spacing!r}")
    if found[0] >= train_steps or found[-1] < 0:
        raise ValueError(
            f"spacing {spacing} with {steps} steps and steps_offset {offset} leads to timesteps {int(found[0])} … "
            f"{int(found[-1])} outside 0 … {train_steps - 1}; take another offset or fewer steps"
        )
    return torch.from_numpy(found.astype(np.int64))


def clean_factors(kind: str, alpha: Tensor, noise_std: Tensor) -> tuple[Tensor, Tensor]:
    """What a network's output says of the clean image: x̂ = p y + q output, with the state y = α x + s ε.

    Args:
        kind: diffusers' prediction_type: ``epsilon``, ``sample`` or ``v_prediction``.
        alpha, noise_std: α and s.

    Returns:
        p and q, like alpha.

    Raises:
        ValueError: an unknown kind, or ``epsilon`` where alpha is 0, where the noise says nothing of the image (there
            diffusers divides by zero).
    """
    if kind == "sample":
        return torch.zeros_like(alpha), torch.ones_like(alpha)
    if kind == "v_prediction":
        return alpha, -noise_std
    if kind != "epsilon":
        raise ValueError(f"prediction_type must be epsilon, sample or v_prediction, not {kind!r}")
    if not (alpha > 0).all():
        raise ValueError(
            "prediction_type 'epsilon' says nothing of the image at zero signal-to-noise ratio; use a model that "
            "predicts v or the sample, or steps that start below the zero-SNR timestep (spacing 'leading')"
        )
    return 1 / alpha, -noise_std / alpha


def _capped(alpha_bar: Callable[[float], float], train_steps: int) -> Tensor:
    """β of a continuous ᾱ on [0, 1], at most 0.999: float32 [train_steps]."""
    ends = [alpha_bar(i / train_steps) for i in range(train_steps + 1)]
    return torch.tensor([min(1 - b / a, 0.999) for a, b in pairwise(ends)], dtype=torch.float32)


def _karras(alpha_bar: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Karras' grid over the training schedule: timesteps between its own, and ᾱ there, two float64 [steps]."""
    if not 2 <= steps <= len(alpha_bar):
        raise ValueError(f"steps must lie between 2 and the model's {len(alpha_bar)} for spacing karras, not {steps}")
    if alpha_bar[-1] == 0:
        raise ValueError(
            "spacing 'karras' needs a finite largest σ, and zero terminal SNR has none; take trailing or linspace"
        )
    log_sigma = 0.5 * ((1 - alpha_bar) / alpha_bar).log()
    grid = _karras_grid(steps, float(log_sigma[0].exp()), float(log_sigma[-1].exp()), RHO)
    at = np.interp(grid.log().numpy(), log_sigma.numpy(), np.arange(len(log_sigma)))
    return torch.from_numpy(at), 1 / (1 + grid**2)


def _karras_grid(steps: int, sigma_min: float, sigma_max: float, rho: float) -> Tensor:
    """σ, largest first, evenly spaced in σ^(1/ρ): float64 [steps]."""
    if steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}")
    if not 0 < sigma_min < sigma_max < math.inf:
        raise ValueError(f"σ must run from a larger to a smaller positive number, not from {sigma_max} to {sigma_min}")
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return (high + ramp * (low - high)) ** rho
