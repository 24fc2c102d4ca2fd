"""A target that costs nothing, so that what is measured is everything else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdiff.requests import Request
from specdiff.targets.base import TargetInfo
from specdiff.transitions import Transitions


class Null:
    """Predicts the state itself; its pictures are noise, each seed's its own."""

    shape = (1, 8, 8)

    def __init__(self, *, device: str = "cpu", steps: int = 4) -> None:
        """Raises ValueError where `steps`, N, is less than 1."""
        self.device = device
        self.transitions = _transitions(steps)

    @staticmethod
    def info(*, steps: int = 4) -> TargetInfo:
        """What can be told without building it."""
        _transitions(steps)
        return TargetInfo(
            name="noise",
            description="the null target: 8×8 grey noise that costs nothing to make, for tests and benchmarks",
            shape=Null.shape,
            num_classes=None,
            has_null_class=False,
            takes_prompts=False,
            steps=steps,
            licence="none needed, there are no weights",
            weights_sha256=None,
        )

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        return state

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        for request in requests:
            if request.label is not None or request.prompt is not None:
                raise ValueError(f"request {request.key!r}: noise takes neither label nor prompt")
        return {}

    def decode(self, latents: Tensor) -> Tensor:
        return ((latents + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def _transitions(steps: int) -> Transitions:
    """DDPM on a cosine schedule that starts at N(0, I)."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    alpha_bar = torch.cos(torch.pi / 2 * (1 - torch.arange(steps, dtype=torch.float64) / steps)) ** 2
    alpha_bar[0] = 0
    return Transitions.ddpm(alpha_bar)
