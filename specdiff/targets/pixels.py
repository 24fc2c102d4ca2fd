"""From the range of numbers that networks draw in to pixels."""

from __future__ import annotations

import torch
from torch import Tensor


def pixels(images: Tensor) -> Tensor:
    """Images of −1 … 1, float32 [rows, channels, height, width], to levels, uint8 [rows, height, width, channels]."""
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
