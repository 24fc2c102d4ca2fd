"""How many drafts of a block are kept, vectorised over lanes.

A verification gets, for each lane, the log ratios ln q/p of its drafts and the distances δ of the draft's from the
target's means, and says how many drafts τ are kept and with which α the residual r_α ∝ max(0, α q − p) is drawn at
the first one that is not.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specdiff.coupling import log_residual_mass


class Verification(Protocol):
    """A rule that keeps the law of the target."""

    fresh_noise: bool
    """Whether a step that an earlier round has drafted must take fresh random numbers when it is drafted again."""

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Decide how many drafts are kept.

        Args:
            length: int64 [lanes], how many of the γ drafts count in this lane.
            log_ratio: float64 [lanes, γ], ln q/p at draft i = 1 … γ given the drafts before it.
            delta: float64 [lanes, γ], ‖m^p − m^q‖ / σ at the same positions.
            u: float64 [lanes, γ], independent uniforms in (0, 1).

        Returns:
            τ, int64 [lanes], 0 … length, and ln α, float64 [lanes], for the residual at position τ + 1.
        """
        ...


class Block:
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
