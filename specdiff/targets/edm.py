"""Denoisers D(y; σ) in the form of EDM (Karras et al., arXiv 2206.00364), as targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdiff import schedules
from specdiff.requests import Request
from specdiff.targets.pixels import pixels


class EDM:
    """A denoiser of x + σ ξ, sampled with churn on EDM's grid of noise levels.

    With t = σ / (1 + σ), (x + σ ξ) / (1 + σ) is the interpolant (1 − t) x + t ξ, whose steps are
    :meth:`specdiff.Transitions.churn`. The denoiser sees y = x + σ ξ itself.
    """

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        shape: tuple[int, ...],
        *,
        steps: int = 64,
        churn: float = 0.5,
        sigma_min: float = 0.002,
        sigma_max: float = 80.0,
        rho: float = schedules.RHO,
        num_classes: int | None = None,
        device: str = "cpu",
    ) -> None:
        """Wrap a denoiser.

        Args:
            denoiser: ``denoiser(y, sigma)``, or ``denoiser(y, sigma, label)`` where there are classes, with y float32
                [rows, *shape], sigma float32 [rows] and label int64 [rows]; returns E[x | y] as float32 [rows, *shape].
                A row's answer must not depend on the other rows.
            shape: of an image, in −1 … 1: channels, height, width where it is decoded to pixels.
            steps: N, at least 2.
            churn: ε, share of the noise of the reverse SDE; 0 leaves nothing to speculate on.
            sigma_min, sigma_max, rho: EDM's grid.
            num_classes: None for a denoiser without classes.
            device: torch device of network and states.

        Raises:
            ValueError: a setting out of range.
        """
        self.shape = shape
        self.device = device
        self.transitions = schedules.edm(steps, churn, sigma_min, sigma_max, rho).transitions
        self._denoiser = denoiser
        self._num_classes = num_classes
        self._scale = (1 / self.transitions.alpha).float().to(device)
        self._sigma = (self.transitions.noise_std / self.transitions.alpha).float().to(device)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """The denoiser's answer at the state in its own scale."""
        scale = self._scale[step].view(-1, *(1 for _ in self.shape))
        return self._denoiser(scale * state, self._sigma[step], *conditioning.values())

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """``label``, int64 [rows], where there are classes."""
        count = self._num_classes
        for request in requests:
            if request.prompt is not None or request.guidance_scale not in (None, 1):
                raise ValueError(f"request {request.key!r}: a denoiser of this form takes neither prompt nor guidance")
            if count is None and request.label is not None:
                raise ValueError(f"request {request.key!r}: this denoiser has no classes")
            if count is not None and (request.label is None or request.label >= count):
                raise ValueError(f"request {request.key!r}: needs a label of 0 … {count - 1}, not {request.label}")
        if count is None:
            return {}
        return {"label": torch.tensor([request.label for request in requests], device=self.device)}

    def decode(self, latents: Tensor) -> Tensor:
        """Levels, uint8 [rows, height, width, channels]."""
        return pixels(latents)
