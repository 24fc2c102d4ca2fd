"""The class-conditional U-Net behind the built-in target."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PATCH = 2
NULL_CLASS = 10


class Block(nn.Module):
    """Residual block with scale-shift conditioning and, optionally, self-attention over all pixels."""

    def __init__(self, inputs: int, outputs: int, conditioning: int, heads: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.film = nn.Linear(conditioning, 2 * outputs)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        nn.init.zeros_(self.conv2.weight)
        if heads:
            self.norm3 = nn.GroupNorm(8, outputs)
            self.qkv = nn.Conv2d(outputs, 3 * outputs, 1)
            self.out = nn.Conv2d(outputs, outputs, 1)
            nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor, conditioning: Tensor) -> Tensor:
        # x [rows, inputs, height, width], conditioning [rows, conditioning]
        h = self.conv1(functional.silu(self.norm1(x)))
        scale, shift = self.film(conditioning)[:, :, None, None].chunk(2, dim=1)
        h = self.conv2(functional.silu(self.norm2(h) * (1 + scale) + shift))
        h = self.shortcut(x) + h
        if self.heads:
            qkv = self.qkv(self.norm3(h)).flatten(2)  # [rows, 3C, pixels]
            q, k, v = qkv.unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
            attended = functional.scaled_dot_product_attention(q, k, v)
            h = h + self.out(attended.transpose(-1, -2).reshape(h.shape))
        return h


class UNet(nn.Module):
    """Predicts the clean image from a variance-preserving noisy one, for 28×28 grey images.

    Patches of 2×2 pixels become channels, so that the widest feature map is 14×14. Inputs and outputs are scaled to
    unit variance whatever the noise (Karras et al., arXiv 2206.00364, section 5), in a form that holds for a state
    of pure noise (``alpha = 0``) too.
    """

    frequencies: Tensor

    def __init__(
        self, widths: tuple[int, int] = (64, 96), conditioning: int = 128, heads: int = 4, data_std: float = 0.83
    ) -> None:
        super().__init__()
        top, bottom = widths
        self.data_std = data_std
        self.register_buffer("frequencies", 2 * math.pi * torch.logspace(-2, 4, 16, base=2.0), persistent=False)
        self.time = nn.Linear(32, conditioning)
        self.label = nn.Embedding(NULL_CLASS + 1, conditioning)
        self.mix = nn.Linear(conditioning, conditioning)
        self.inlet = nn.Conv2d(PATCH * PATCH, top, 3, padding=1)
        self.down = nn.ModuleList([Block(top, top, conditioning), Block(top, top, conditioning)])
        self.shrink = nn.Conv2d(top, bottom, 3, stride=2, padding=1)
        self.middle = nn.ModuleList([Block(bottom, bottom, conditioning, heads if i == 1 else 0) for i in range(3)])
        self.grow = nn.Conv2d(bottom, 4 * top, 1)
        self.up = nn.ModuleList([Block(2 * top, top, conditioning), Block(2 * top, top, conditioning)])
        self.norm = nn.GroupNorm(8, top)
        self.outlet = nn.Conv2d(top, PATCH * PATCH, 3, padding=1)
        nn.init.zeros_(self.outlet.weight)

    def forward(self, state: Tensor, alpha: Tensor, noise_std: Tensor, label: Tensor) -> Tensor:
        """Predict the clean image x in state = alpha·x + noise_std·ε.

        Args:
            state: float32 [rows, 1, 28, 28].
            alpha: float32 [rows], with alpha² + noise_std² = 1.
            noise_std: float32 [rows].
            label: int64 [rows], 0 … 9, or 10 for no class.

        Returns:
            float32 [rows, 1, 28, 28], not clipped, whatever the type of the weights.
        """
        total = torch.sqrt((alpha * self.data_std) ** 2 + noise_std**2)
        skip, scale = alpha * self.data_std**2 / total**2, noise_std * self.data_std / total
        x = state / total[:, None, None, None]
        prediction = self.features(x, torch.atan2(noise_std, alpha), label)
        return skip[:, None, None, None] * state + scale[:, None, None, None] * prediction

    def features(self, x: Tensor, angle: Tensor, label: Tensor) -> Tensor:
        dtype = self.inlet.weight.dtype
        phase = angle[:, None] * self.frequencies  # [rows, 16]
        time = self.time(torch.cat([phase.cos(), phase.sin()], dim=1).to(dtype))
        conditioning = functional.silu(self.mix(functional.silu(time + self.label(label))))

        h = self.inlet(functional.pixel_unshuffle(x.to(dtype), PATCH))
        skips = []
        for block in self.down:
            h = block(h, conditioning)
            skips.append(h)
        h = self.shrink(h)
        for block in self.middle:
            h = block(h, conditioning)
        h = functional.pixel_shuffle(self.grow(h), 2)
        for block in self.up:
            h = block(torch.cat([h, skips.pop()], dim=1), conditioning)
        h = self.outlet(functional.silu(self.norm(h)))
        return functional.pixel_shuffle(h, PATCH).float()
