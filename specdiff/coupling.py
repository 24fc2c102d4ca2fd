"""Two Gaussians of equal covariance: the residual's mass and its quantile.

Target N(0, 1) and draft N(δ, 1) along the line that joins their means, in units of σ. The residual is
r_α ∝ max(0, α q − p) for 0 < α ≤ 1. Its support is s < s* = ln α / δ + δ / 2, where α φ(s*) = φ(s* − δ).

Everything is float64 and written in the Mills ratio M(x) = Φ(x) / φ(x), since for a good drafter δ → 0, where
α Φ(s*) − Φ(s* − δ) cancels.
"""

import math

import numpy as np
import torch
from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_TINY = 1e-150
_NODES, _WEIGHTS = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(10))


def log_residual_mass(log_alpha: Tensor, delta: Tensor) -> Tensor:
    """ln S(α, δ), where S = α Φ(s*) − Φ(s* − δ) is the integral of max(0, α q − p).

    Args:
        log_alpha: float64 [...], ≤ 0.
        delta: float64 [...], ≥ 0, the distance of the means in units of σ.

    Returns:
        float64 [...], −inf where S underflows even in log form.
    """
    delta = delta.clamp(min=_TINY)
    upper = _edge(log_alpha, delta)
    return _log_mass_below(upper, log_alpha, delta, torch.zeros_like(delta))


def residual_quantile(log_alpha: Tensor, delta: Tensor, v: Tensor) -> Tensor:
    """The point s at which the residual's distribution function is v.

    Newton's method on √(ln S − ln G(s)) = √(−ln v), which is nearly linear in s, where G is the residual's mass below
    s. A fixed number of iterations: no data-dependent loop.

    Args:
        log_alpha: float64 [...], ≤ 0.
        delta: float64 [...], ≥ 0.
        v: float64 [...], in (0, 1).

    Returns:
        float64 [...], at most s*.
    """
    delta = delta.clamp(min=_TINY)
    upper = _edge(log_alpha, delta)
    log_mass = _log_mass_below(upper, log_alpha, delta, torch.zeros_like(delta))
    goal = torch.sqrt(-torch.log(v))
    log_curvature = log_alpha - 0.5 * upper**2 - _LOG_SQRT_2PI + torch.log(delta) - log_mass
    lower = torch.special.ndtri(torch.exp(torch.log(v) + log_mass - log_alpha))  # since G(s) ≤ α Φ(s)
    s = torch.maximum(lower, upper - goal * math.sqrt(2) * torch.exp(-0.5 * log_curvature))
    for _ in range(4):
        gap = delta * (upper - s)
        log_below = _log_mass_below(s, log_alpha, delta, gap)
        root = torch.sqrt((log_mass - log_below).clamp(min=0))
        density = torch.exp(log_alpha - 0.5 * s**2 - _LOG_SQRT_2PI - log_below) * -torch.expm1(-gap)
        step = 2 * root * (root - goal) / density
        s = torch.minimum(torch.maximum(s + torch.nan_to_num(step, 0.0, 0.0, 0.0), lower), upper)
    return s


def residual_transport(log_alpha: Tensor, delta: Tensor, s: Tensor) -> Tensor:
    """T_α: carries a rejected draft's s, which follows (p − α q)₊, to the residual (α q − p)₊, decreasing.

    T_α(s) = Ψ_α⁻¹([Φ(δ − s) − α Φ(−s)] / (1 − α + S)); T_1 is the reflection s ↦ δ − s.

    Args:
        log_alpha: float64 [...], ≤ 0.
        delta: float64 [...], ≥ 0.
        s: float64 [...], at least s*; below it the answer means nothing, but is a number.

    Returns:
        float64 [...], at most s*.
    """
    delta = delta.clamp(min=_TINY)
    mirrored = delta - s
    gap = (delta * (s - _edge(log_alpha, delta))).clamp(min=0)
    log_above = log_alpha + _log_mass_below(mirrored, -log_alpha, delta, gap)  # of (p − α q)₊ beyond s
    total = torch.exp(log_residual_mass(log_alpha, delta)) - torch.expm1(log_alpha)
    v = torch.exp(log_above) / total
    return residual_quantile(log_alpha, delta, torch.nan_to_num(v, 0.5).clamp(_TINY, 1 - 2**-53))


def _edge(log_alpha: Tensor, delta: Tensor) -> Tensor:
    """s*, where the support of the residual ends."""
    return log_alpha / delta + 0.5 * delta


def _log_mass_below(s: Tensor, log_alpha: Tensor, delta: Tensor, gap: Tensor) -> Tensor:
    """ln G(s), G(s) = α Φ(s) − Φ(s − δ), for s ≤ s*; gap = δ (s* − s), so that φ(s − δ) = exp(−gap) α φ(s)."""
    shifted = s - delta
    mills_shifted = _mills(shifted)
    difference = torch.where(delta < 0.5, _mills_integral(shifted, delta), _mills(s) - mills_shifted)
    near = log_alpha - 0.5 * s**2 - _LOG_SQRT_2PI + torch.log(difference - torch.expm1(-gap) * mills_shifted)
    # For s > 1 the shifted term is far smaller than the first (α ≤ 1 makes δ > 2 there), so nothing cancels.
    log_first = log_alpha + torch.special.log_ndtr(s)
    far = log_first + torch.log1p(-torch.exp(torch.special.log_ndtr(shifted) - log_first).clamp(max=1))
    return torch.where(s > 1, far, near)


def _mills(x: Tensor) -> Tensor:
    """M(x) = Φ(x) / φ(x)."""
    return math.sqrt(math.pi / 2) * torch.special.erfcx(x * -math.sqrt(0.5))


def _mills_integral(start: Tensor, length: Tensor) -> Tensor:
    """M(start + length) − M(start) by Gauss–Legendre quadrature of M′ = 1 + x M, for length < 0.5."""
    nodes, weights = _NODES.to(start.device), _WEIGHTS.to(start.device)
    x = start[..., None] + 0.5 * length[..., None] * (1 + nodes)
    inverse = 1 / torch.minimum(x, x.new_tensor(-1.0)) ** 2
    series = inverse * (1 - inverse * (3 - inverse * (15 - inverse * (105 - 945 * inverse))))
    slope = torch.where(x < -25, series, 1 + x * _mills(x))
    return 0.5 * length * (slope * weights).sum(-1)
