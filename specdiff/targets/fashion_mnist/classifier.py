"""The small classifier whose penultimate layer is the feature space in which Fashion-MNIST sets are compared."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

WEIGHTS = Path(__file__).with_name("classifier.safetensors")
REFERENCE = Path(__file__).with_name("reference.npz")
CLASS_NAMES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
SIDE = 28
FEATURES = 64


class Convolution(nn.Module):
    """3×3 convolution, batch normalisation and SiLU; with the input added where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = inputs == outputs and stride == 1
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.silu(self.norm(self.conv(x)))
        return x + h if self.residual else h


class Classifier(nn.Module):
    """Grey 28×28 images to 64 features, and those to 10 logits by one linear layer.

    The features are means over the last feature map of a smooth activation, so that a small change of the picture is a
    small change of the features, and a batch's other rows have no part in them (in ``eval`` mode).
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.PixelUnshuffle(2),  # [rows, 4, 14, 14]
            Convolution(4, 32),
            Convolution(32, 32),
            Convolution(32, 64, stride=2),  # [rows, 64, 7, 7]
            Convolution(64, 64),
            Convolution(64, 64),
            Convolution(64, FEATURES),
        )
        self.head = nn.Linear(FEATURES, len(CLASS_NAMES))

    def features(self, pixels: Tensor) -> Tensor:
        """Features of images: pixels 0 … 255, uint8 or float32 [rows, 1, 28, 28] → float32 [rows, 64]."""
        x = pixels.float() / 127.5 - 1
        h: Tensor = self.trunk(x.contiguous(memory_format=torch.channels_last))
        return h.mean(dim=(2, 3))

    def forward(self, pixels: Tensor) -> Tensor:
        """Class scores of images: pixels as in ``features`` → logits float32 [rows, 10]."""
        logits: Tensor = self.head(self.features(pixels))
        return logits


def load_classifier(weights: Path = WEIGHTS) -> Classifier:
    """The trained network, in ``eval`` mode on the CPU, its parameters frozen.

    Raises:
        OSError: the file cannot be read.
        RuntimeError, safetensors.SafetensorError: it does not hold this network.
    """
    network = Classifier()
    network.load_state_dict(load_file(weights))
    return network.eval().requires_grad_(False)
