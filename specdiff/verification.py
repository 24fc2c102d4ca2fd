"""How many drafts of a block are kept, and where the first one that is not goes; vectorised over lanes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specdiff.coupling import log_residual_mass, residual_quantile, residual_transport


class Verification(Protocol):
    """A rule that keeps the law of the target.

    It measures a draft at position i by s = ⟨y − m^q, e⟩ / σ, where e points from the target's mean to the draft's: s
    follows N(0, 1) under the target and N(δ, 1) under the draft.

    Attributes:
        fresh_noise: whether a step that an earlier round has drafted must take fresh random numbers when it is drafted
            again, because that round has looked at them.
    """

    fresh_noise: bool

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Decide how many drafts are kept.

        Args:
            length: int64 [lanes], how many of the γ drafts count in this lane.
            log_ratio: float64 [lanes, γ], ln q/p at draft i = 1 … γ given the drafts before it.
            delta: float64 [lanes, γ], ‖m^p − m^q‖ / σ at the same positions.
            u: float64 [lanes, γ], independent uniforms in (0, 1).

        Returns:
            τ, int64 [lanes], 0 … length, and ln α, float64 [lanes], for the residual r_α ∝ max(0, α q − p) that the
            state at position τ + 1 then follows.
        """
        ...

    def correct(self, log_alpha: Tensor, delta: Tensor, s: Tensor, v: Tensor) -> Tensor:
        """Put the rejected draft where the residual wants it.

        Args:
            log_alpha: float64 [lanes], of ``accept``.
            delta: float64 [lanes], at position τ + 1.
            s: float64 [lanes], of the rejected draft.
            v: float64 [lanes], uniforms in (0, 1) that nothing else has looked at.

        Returns:
            float64 [lanes], s of the new state.
        """
        ...


class _Residual:
    """Corrections that serve any α: a draw from the residual, or the deterministic transport of the rejected draft."""

    def __init__(self, correction: str = "residual") -> None:
        self._transport = correction == "transport"

    def correct(self, log_alpha: Tensor, delta: Tensor, s: Tensor, v: Tensor) -> Tensor:
        if self._transport:
            return residual_transport(log_alpha, delta, s)
        return residual_quantile(log_alpha, delta, v)


class _LeftToRight:
    """Keep drafts while ln U ≤ ln q/p (Leviathan et al., arXiv 2211.17192; De Bortoli et al., arXiv 2501.05370)."""

    fresh_noise = False

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        position = torch.arange(1, u.shape[1] + 1, device=length.device)
        kept = (torch.log(u) <= log_ratio) & (position <= length[:, None])
        tau = kept.long().cumprod(1).sum(1)
        return tau, torch.zeros(len(length), dtype=torch.float64, device=length.device)


class Token(_LeftToRight, _Residual):
    """Token verification: each draft by itself, left to right; the first one rejected follows the residual r_1."""


class Reflection(_LeftToRight):
    """Reflection coupling: as token verification, but the rejected draft is mirrored between the two means.

    The same law as a draw of r_1, without a random number (Bou-Rabee, Eberle & Zimmer, arXiv 1805.00452).
    """

    def correct(self, log_alpha: Tensor, delta: Tensor, s: Tensor, v: Tensor) -> Tensor:
        return delta - s


class Block(_Residual):
    """Block verification (Sun et al., arXiv 2403.10444, algorithm 2), on densities.

    p_i = min(1, p_{i−1} q/p(ỹ_i)); h_i = S_i / (S_i + 1 − p_i) with S_i = S(p_i, δ_{i+1}), h_γ = p_γ; τ is the largest
    i with U_i ≤ h_i. The residual has α = p_τ. Every uniform of the block is looked at, and so is the noise of drafts
    that are then dropped: neither may be used again.
    """

    fresh_noise = True

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        lanes, drafts = log_ratio.shape
        # ln p_i = min(0, ln p_{i−1} + r_i) is a walk reflected at 0: its sum less its running maximum.
        walk = log_ratio.cumsum(1)
        peak = walk.cummax(1).values.clamp(min=0)
        log_p = torch.cat([walk.new_zeros(lanes, 1), walk - peak], dim=1)  # [lanes, γ + 1], p_0 … p_γ

        mass = torch.exp(log_residual_mass(log_p[:, 1:-1], delta[:, 1:]))  # S_1 … S_{γ−1}
        total = mass - torch.expm1(log_p[:, 1:-1])
        h = torch.where(total == 0, 1, mass / total)
        h = torch.cat([h, log_p[:, -1:].exp()], dim=1)  # [lanes, γ], h_1 … h_γ
        position = torch.arange(1, drafts + 1, device=length.device)
        h = torch.where(position == length[:, None], log_p[:, 1:].exp(), h)

        kept = (u <= h) & (position <= length[:, None])
        tau = (kept * position).amax(1)
        return tau, log_p.gather(1, tau[:, None]).squeeze(1)
