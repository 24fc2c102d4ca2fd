"""From latents to pixels, by the decoder of a variational or a vector-quantised autoencoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdiff.targets.diffusers.folder import Component
from specdiff.targets.network import prepare
from specdiff.targets.pixels import pixels

DECODE_ROWS = 4


class Decoder:
    """The decoder, in float32 whatever the network has: it is called once an image, and 16 bits can overflow."""

    def __init__(self, model: Any, scale: float, device: str) -> None:
        self._model = prepare(model, device=device)
        self._scale = scale
        self._device = device

    @torch.no_grad()
    def __call__(self, latents: Tensor) -> Tensor:
        """Latents, float32 [rows, *shape], to levels, uint8 [rows, height, width, channels].

        Raises:
            ValueError: the decoder returned NaN or infinity.
        """
        images = self._model.decode(latents.to(self._device) / self._scale).sample
        if not images.isfinite().all():
            raise ValueError("the decoder returned NaN or infinity")
        return pixels(images)


def scale_of(component: Component) -> float:
    """What latents were multiplied by before the network was trained on them."""
    return float(component.config.get("scaling_factor", 0.18215))
