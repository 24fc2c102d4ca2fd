"""What the prediction of a draft is made of."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specdiff.transitions import Transitions


class Drafter(Protocol):
    """Predicts the clean image for the drafts of a round.

    Attributes:
        opens: whether every round opens with a call of the network at its own start, which ``observe`` is then told of
            before the drafts. Where it does not, a lane's first round has nothing to go by and drafts nothing.
    """

    opens: bool

    def predict(self, state: Tensor, step: Tensor) -> Tensor:
        """The clean-image prediction x̃ for a step from a draft state.

        Args:
            state: float32 [lanes, *shape].
            step: int64 [lanes].

        Returns:
            float32 [lanes, *shape].
        """
        ...

    def observe(self, path: Tensor, predictions: Tensor, step: Tensor, kept: Tensor, length: Tensor) -> None:
        """Learn from what the network said.

        Args:
            path: float32 [lanes, drafts + 1, *shape], ỹ_0 ….
            predictions: float32 [lanes, drafts + 1, *shape], x̂ at those states.
            step: int64 [lanes, drafts + 1], their steps.
            kept: int64 [lanes], τ.
            length: int64 [lanes], how many drafts counted.
        """
        ...


class HeldDrafter:
    """Holds one thing that the network said constant over the drafts (arXiv 2606.13426, section 4).

    ``free`` holds what the last verification already paid for, ``frozen`` what the round's own opening call says.

    What is held: the clean image (``x0``; a martingale under full churn), the noise (``eps``) or the velocity (``v``:
    α ε − s x on a variance-preserving path, ε − x on the interpolant). Which evaluation: at the ``rejected`` draft,
    which belongs to the same step as the new state and, where its orthogonal noise was kept, lies next to it, or at the
    last ``accepted`` one. After a round that kept everything both are at the last draft.
    """

    def __init__(
        self,
        transitions: Transitions,
        lanes: int,
        shape: tuple[int, ...],
        device: torch.device,
        *,
        opens: bool,
        held: str,
        reuse: str,
    ) -> None:
        """Nothing held yet.

        Raises:
            ValueError: held or reuse is unknown.
        """
        if held not in ("x0", "eps", "v"):
            raise ValueError(f"held must be x0, eps or v, not {held!r}")
        if reuse not in ("rejected", "accepted"):
            raise ValueError(f"reuse must be rejected or accepted, not {reuse!r}")
        self.opens = opens
        self._reuse_rejected = reuse == "rejected"
        self._value = torch.zeros((lanes, *shape), device=device)
        # Each is a held value with x̃ = of_state y + of_value value, from tables [N].
        ones, alpha = torch.ones_like(transitions.alpha), transitions.alpha.clamp(min=1e-30)
        of_state, of_value = {
            "x0": (0 * ones, ones),
            "eps": (1 / alpha, -transitions.noise_std / alpha),
            "v": (transitions.velocity_scale, -transitions.noise_std),
        }[held]
        # [N, 1 …], so that a step picks a factor of the state's rank
        self._of_state, self._of_value = (
            table.float().to(device).view(-1, *(1 for _ in shape)) for table in (of_state, of_value)
        )

    def predict(self, state: Tensor, step: Tensor) -> Tensor:
        return self._of_state[step] * state + self._of_value[step] * self._value

    def observe(self, path: Tensor, predictions: Tensor, step: Tensor, kept: Tensor, length: Tensor) -> None:
        at = torch.minimum(kept + 1, length) if self._reuse_rejected else kept
        every = torch.arange(len(kept), device=kept.device)
        step = step[every, at]
        self._value = (predictions[every, at] - self._of_state[step] * path[every, at]) / self._of_value[step]
