"""What the prediction of a draft is made of."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Drafter(Protocol):
    """Predicts the clean image for the drafts of a round.

    A lane's first round has nothing to go by and drafts nothing.
    """

    def predict(self, state: Tensor, step: Tensor) -> Tensor:
        """The clean-image prediction x̃ for a step from a draft state.

        Args:
            state: float32 [lanes, *shape].
            step: int64 [lanes].

        Returns:
            float32 [lanes, *shape].
        """
        ...

    def observe(self, predictions: Tensor, kept: Tensor, length: Tensor) -> None:
        """Learn from what the network said in this round.

        Args:
            predictions: float32 [lanes, γ + 1, *shape], x̂ at ỹ_0 … ỹ_γ.
            kept: int64 [lanes], τ.
            length: int64 [lanes], how many drafts counted.
        """
        ...


class FreeDrafter:
    """Holds the clean-image prediction that the last verification already paid for (arXiv 2606.13426, section 4).

    The one reused is at the rejected draft, which belongs to the same step as the new state and, where its orthogonal
    noise was kept, lies next to it; after a round that kept everything, it is at the last draft.
    """

    def __init__(self, lanes: int, shape: tuple[int, ...], device: torch.device) -> None:
        self._held = torch.zeros((lanes, *shape), device=device)

    def predict(self, state: Tensor, step: Tensor) -> Tensor:
        return self._held

    def observe(self, predictions: Tensor, kept: Tensor, length: Tensor) -> None:
        freshest = torch.minimum(kept + 1, length)
        self._held = predictions[torch.arange(len(kept), device=kept.device), freshest]
