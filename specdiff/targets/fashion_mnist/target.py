"""The built-in target: 28×28 grey pictures of clothes, by class."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from specdiff.gain import Gain
from specdiff.requests import Request
from specdiff.targets.base import TargetInfo
from specdiff.targets.fashion_mnist.classifier import CLASS_NAMES
from specdiff.targets.fashion_mnist.unet import NULL_CLASS, UNet
from specdiff.targets.network import dtype_of, prepare
from specdiff.targets.pixels import pixels
from specdiff.transitions import Transitions

WEIGHTS = Path(__file__).with_name("unet.safetensors")
GAIN = Path(__file__).with_name("gain.safetensors")


class FashionMNIST:
    """The trained U-Net under a cosine schedule that starts at N(0, I); predictions are clipped to [−1, 1]."""

    shape = (1, 28, 28)

    def __init__(
        self,
        *,
        device: str = "cpu",
        steps: int = 250,
        eta: float = 1.0,
        dtype: str = "float32",
        compile: bool = False,
    ) -> None:
        """Load the weights.

        Args:
            device: torch device.
            steps: N, at least 2.
            eta: share of ancestral noise, 0 … 1.
            dtype: arithmetic of the network; states are float32 always.
            compile: whether the network is compiled.

        Raises:
            ValueError: steps or eta is out of range, or dtype is unknown.
        """
        self.device = device
        self.transitions = _transitions(steps, eta)
        network = UNet()
        network.load_state_dict(load_file(WEIGHTS))
        self._network = prepare(network, device=device, dtype=dtype, compiled=compile)
        self.compile = compile
        self.gain = Gain.load(GAIN)
        self._alpha = self.transitions.alpha.float().to(device)
        self._noise_std = self.transitions.noise_std.float().to(device)

    @staticmethod
    def info(*, steps: int = 250, eta: float = 1.0, dtype: str = "float32", compile: bool = False) -> TargetInfo:
        """What can be told without building the network."""
        _transitions(steps, eta)
        dtype_of(dtype)
        return TargetInfo(
            name="fashion-mnist",
            description="28×28 grey pictures of clothes, by class",
            shape=FashionMNIST.shape,
            num_classes=NULL_CLASS,
            has_null_class=True,
            takes_prompts=False,
            steps=steps,
            licence="MIT",
            weights_sha256=hashlib.sha256(WEIGHTS.read_bytes()).hexdigest(),
            gain_sha256=hashlib.sha256(GAIN.read_bytes()).hexdigest(),
            class_names=CLASS_NAMES,
        )

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """Clean images, float32 [rows, 1, 28, 28] in [−1, 1]."""
        prediction = self._network(state, self._alpha[step], self._noise_std[step], conditioning["label"])
        return prediction.clamp(-1, 1)

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        for request in requests:
            if request.prompt is not None:
                raise ValueError(f"request {request.key!r}: fashion-mnist takes labels, not prompts")
            if request.label is not None and not 0 <= request.label < NULL_CLASS:
                raise ValueError(f"request {request.key!r}: label {request.label} is not in 0 … {NULL_CLASS - 1}")
        labels = [NULL_CLASS if request.label is None else request.label for request in requests]
        return {"label": torch.tensor(labels, device=self.device)}

    def decode(self, latents: Tensor) -> Tensor:
        """Grey levels, uint8 [rows, 28, 28, 1]."""
        return pixels(latents)


def _transitions(steps: int, eta: float) -> Transitions:
    """Cosine schedule (Nichol & Dhariwal, arXiv 2102.09672, without its offset): ᾱ = cos² of N even angles from π/2."""
    if steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}")
    angle = (math.pi / 2) * (1 - torch.arange(steps, dtype=torch.float64) / steps)
    alpha_bar = angle.cos().square()
    alpha_bar[0] = 0  # cos(π/2) is 6e-17 in floating point
    return Transitions.ddim(alpha_bar, eta)
