"""Tables of the Gaussian transitions of a sampler, one row a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """q(y_{n+1} | y_n) = N(a_n y_n + b_n x̂(y_n, n), sigma_n² I) for n = 0 … N−1, noisiest first.

    Every field is float64 [N]. The state y_n is alpha_n x + noise_std_n ε, and y_0 is drawn from N(0, I).

    Attributes:
        a: factor of the state.
        b: factor of the clean-image prediction.
        sigma: standard deviation of the step's noise; 0 where the step is deterministic.
        alpha: signal factor of the state before the step.
        noise_std: noise factor of the state before the step.
        snr: alpha² / noise_std², the signal-to-noise ratio before the step.
    """

    a: Tensor
    b: Tensor
    sigma: Tensor
    alpha: Tensor
    noise_std: Tensor
    snr: Tensor

    def __post_init__(self) -> None:
        for name in ("a", "b", "sigma", "alpha", "noise_std", "snr"):
            table: Tensor = getattr(self, name)
            if table.dtype != torch.float64 or table.shape != self.a.shape or table.dim() != 1:
                raise ValueError(
                    f"transitions: {name} must be float64 [{len(self.a)}], not {table.dtype} {list(table.shape)}"
                )
            if not table.isfinite().all():
                raise ValueError(f"transitions: {name} is not finite at step {int((~table.isfinite()).nonzero()[0])}")
        if (self.sigma < 0).any():
            raise ValueError("transitions: sigma must not be negative")

    def __len__(self) -> int:
        return len(self.a)

    @property
    def natural(self) -> Tensor:
        """α_n / s_n² in u = y α/s², the coordinate in which a denoiser is a filter, float64 [N]."""
        return self.alpha / self.noise_std**2

    @property
    def velocity_scale(self) -> Tensor:
        """k_n in x = k y − c v, float64 [N]; v is α ε − s x on a variance-preserving path and ε − x on an interpolant.

        So k is α there and 1 / (α + s) here, and c (:attr:`velocity_noise`) is s there and s / (α + s) here.
        """
        return self.alpha if self._preserves_variance else 1 / (self.alpha + self.noise_std)

    @property
    def velocity_noise(self) -> Tensor:
        """c_n in x = k y − c v, float64 [N]: see :attr:`velocity_scale`."""
        return self.noise_std if self._preserves_variance else self.noise_std / (self.alpha + self.noise_std)

    @property
    def _preserves_variance(self) -> bool:
        return bool((self.alpha**2 + self.noise_std**2 - 1).abs().max() < 1e-9)

    @classmethod
    def ddim(
        cls,
        alpha_bar: Tensor,
        eta: float = 1.0,
        final_alpha_bar: float = 1.0,
        next_alpha_bar: Tensor | None = None,
    ) -> Transitions:
        """Variance-preserving steps of DDIM (Song et al., arXiv 2010.02502, equations 12 and 16); eta = 1 is DDPM.

        Args:
            alpha_bar: ᾱ at each of the N steps, noisiest first, strictly increasing, in [0, 1).
            eta: share of the ancestral noise, 0 (deterministic) … 1.
            final_alpha_bar: ᾱ after the last step.
            next_alpha_bar: ᾱ that each step leads to, [N], for samplers that do not step to where the next step
                starts (diffusers' DDIM); final_alpha_bar is then not used.

        Raises:
            ValueError: alpha_bar is not increasing or not in range, or eta is not in [0, 1].
        """
        if not 0 <= eta <= 1:
            raise ValueError(f"eta must lie between 0 and 1, not {eta}")
        alpha, noise_std, next_alpha, next_std = _scales(alpha_bar, final_alpha_bar, next_alpha_bar)
        c = eta * (next_std / noise_std) * torch.sqrt((1 - (alpha / next_alpha) ** 2).clamp(min=0))
        k = torch.sqrt((next_std**2 - c**2).clamp(min=0))
        return cls._of(k / noise_std, next_alpha - k * alpha / noise_std, c, alpha, noise_std)

    @classmethod
    def ddpm(
        cls,
        alpha_bar: Tensor,
        variance: Literal["fixed_small", "fixed_large"] = "fixed_small",
        final_alpha_bar: float = 1.0,
        next_alpha_bar: Tensor | None = None,
    ) -> Transitions:
        """Ancestral steps of DDPM (Ho et al., arXiv 2006.11239, section 3.2).

        Args:
            alpha_bar: as for :meth:`ddim`.
            variance: ``fixed_small`` is the posterior variance β̃, ``fixed_large`` is β. The mean is the same.
            final_alpha_bar, next_alpha_bar: as for :meth:`ddim`.

        Raises:
            ValueError: as for :meth:`ddim`, or an unknown variance.
        """
        small = cls.ddim(alpha_bar, 1.0, final_alpha_bar, next_alpha_bar)
        if variance == "fixed_small":
            return small
        if variance != "fixed_large":
            raise ValueError(f"variance must be fixed_small or fixed_large, not {variance!r}")
        alpha, _, next_alpha, _ = _scales(alpha_bar, final_alpha_bar, next_alpha_bar)
        sigma = torch.sqrt(1 - (alpha / next_alpha) ** 2)
        sigma[-1] = small.sigma[-1]  # nothing follows the last step: noise there would only be seen in the picture
        return cls._of(small.a, small.b, sigma, small.alpha, small.noise_std)

    @classmethod
    def churn(cls, t: Tensor, eps: float = 0.5) -> Transitions:
        """Euler–Maruyama steps of the churned interpolant y_t = (1 − t) x + t ξ.

        The reverse SDE with noise eps·g, g² = 2t / (1 − t) (De Bortoli et al., arXiv 2501.05370, section 4). The first
        step (t = 1, where g is infinite) and the last (to t = 0) are deterministic Euler steps.

        EDM's sampler starts short of t = 1, from its largest σ times pure noise. Where t does so, the state before the
        first step is kept divided by t, which makes it N(0, I): y_0 = ((1 − t) x + t ξ) / t.

        Args:
            t: N + 1 points of the interpolant, from 1 or less down to 0, strictly decreasing.
            eps: share of churn, 0 (the probability flow) … 1.

        Raises:
            ValueError: t does not run from at most 1 down to 0, or eps is negative.
        """
        t = t.to(torch.float64)
        if t.dim() != 1 or len(t) < 2 or t[0] > 1 or t[-1] != 0 or not (t.diff() < 0).all():
            raise ValueError("t must fall strictly, from 1 or less to 0, with at least two points")
        if eps < 0:
            raise ValueError(f"eps must not be negative, not {eps}")
        now, h = t[:-1], -t.diff()
        churn = torch.full_like(now, eps**2)
        churn[0] = churn[-1] = 0
        clean = 1 - now
        inverse = torch.where(clean > 0, 1 / clean, 0)
        a = 1 - churn * h * inverse - (1 + churn) * h / now
        b = (1 + churn) * h / now
        sigma = torch.sqrt(churn * 2 * now * inverse * h)
        scale = torch.ones_like(now)
        scale[0] = now[0]
        return cls._of(a * scale, b, sigma, clean / scale, now / scale)

    @classmethod
    def _of(cls, a: Tensor, b: Tensor, sigma: Tensor, alpha: Tensor, noise_std: Tensor) -> Transitions:
        return cls(a, b, sigma, alpha, noise_std, (alpha / noise_std) ** 2)


def _scales(
    alpha_bar: Tensor, final_alpha_bar: float, next_alpha_bar: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """α and s = √(1 − α²) before and after each step: four float64 [N]."""
    alpha_bar = alpha_bar.to(torch.float64)
    if alpha_bar.dim() != 1 or len(alpha_bar) == 0:
        raise ValueError(f"alpha_bar must be a non-empty vector, not {list(alpha_bar.shape)}")
    if next_alpha_bar is None:
        following = torch.cat([alpha_bar[1:], alpha_bar.new_tensor([final_alpha_bar])])
        rises = following > alpha_bar
    else:
        following = next_alpha_bar.to(torch.float64)
        if following.shape != alpha_bar.shape:
            raise ValueError(f"next_alpha_bar must be [{len(alpha_bar)}] like alpha_bar, not {list(following.shape)}")
        # A step may lead to where it starts, and so do nothing: diffusers' DDIM can end in one.
        rises = (following >= alpha_bar) & (alpha_bar < 1)
    if not (alpha_bar >= 0).all() or not (alpha_bar.diff() > 0).all() or not (rises & (following <= 1)).all():
        raise ValueError("alpha_bar must rise strictly from at least 0 to at most 1, where steps lead to included")
    return alpha_bar.sqrt(), (1 - alpha_bar).sqrt(), following.sqrt(), (1 - following).sqrt()
