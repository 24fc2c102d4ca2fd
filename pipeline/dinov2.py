"""DINOv2's vision transformer from plain tensors, with torch-fidelity's preparation of the images.

torch-fidelity fetches the network's code together with its weights and runs it; here the code is this file. It follows
Oquab et al., arXiv 2304.07193, and gives what the published `dinov2_vit…14` networks give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_fidelity import FeatureExtractorBase
from torch_fidelity.feature_extractor_dinov2 import FeatureExtractorDinoV2

from pipeline.extractor_weights import published_weights, read_tensors

HEAD_DIMENSIONS = 64
EPSILON = 1e-6
OFFSET = 0.1  # which the published networks add to the grid when they interpolate its positions


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        qkv = self.qkv(x).view(rows, tokens, 3, width // HEAD_DIMENSIONS, HEAD_DIMENSIONS)
        mixed = functional.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        return self.proj(mixed.transpose(1, 2).reshape(rows, tokens, width))


class _Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x)))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=EPSILON), nn.LayerNorm(width, eps=EPSILON)
        self.attn, self.mlp = _Attention(width), _Perceptron(width)
        self.ls1, self.ls2 = _Scale(width), _Scale(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class _Patches(nn.Module):
    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, side, stride=side)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class VisionTransformer(nn.Module):
    """Images float32 [rows, 3, height, width] to the class token, float32 [rows, width of the network]."""

    def __init__(self, width: int, depth: int, patch: int, grid: int) -> None:
        super().__init__()
        self.patch_embed = _Patches(width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))  # only used in training
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> VisionTransformer:
        """The network that these tensors are the weights of. Raises KeyError, RuntimeError for those of another one."""
        width, _, patch, _ = tensors["patch_embed.proj.weight"].shape
        grid = round((tensors["pos_embed"].shape[1] - 1) ** 0.5)
        depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
        network = cls(width, depth, patch, grid)
        network.load_state_dict(tensors)
        return network

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.patch_embed(x)
        positions = self._positions(*patches.shape[2:])
        h = torch.cat([self.cls_token.expand(len(x), -1, -1), patches.flatten(2).transpose(1, 2)], dim=1) + positions
        for block in self.blocks:
            h = block(h)
        return self.norm(h)[:, 0]

    def _positions(self, height: int, width: int) -> Tensor:
        """Of the class token and of a grid of so many patches, [1, 1 + height · width, width of the network]."""
        side = round((self.pos_embed.shape[1] - 1) ** 0.5)
        if (height, width) == (side, side):
            return self.pos_embed
        grid = self.pos_embed[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        factors = (height + OFFSET) / side, (width + OFFSET) / side
        grid = functional.interpolate(grid, scale_factor=factors, mode="bicubic")
        return torch.cat([self.pos_embed[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


class Dinov2Extractor(FeatureExtractorDinoV2):  # type: ignore[misc]
    """torch-fidelity's, with the network of this file."""

    def __init__(
        self, name: str, features_list: list[str], feature_extractor_weights_path: str | None = None, **_: Any
    ) -> None:
        """Raises PipelineError for weights that cannot be had, KeyError or RuntimeError for another network's."""
        FeatureExtractorBase.__init__(self, name, features_list)
        self.feature_extractor_internal_dtype = torch.float32
        path = Path(feature_extractor_weights_path) if feature_extractor_weights_path else published_weights(name)
        self.model = VisionTransformer.of(read_tensors(path, name))
