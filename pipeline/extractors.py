"""Feature extractors: torch-fidelity's, and the built-in target's classifier, which is added to its registry."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_fidelity
from safetensors import SafetensorError
from torch import Tensor
from torch_fidelity.feature_extractor_clip import MODEL_METADATA as CLIP
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

from pipeline.clip import ClipExtractor
from pipeline.dinov2 import Dinov2Extractor
from pipeline.errors import PipelineError, UsageError
from pipeline.extractor_weights import DINOV2, published_weights, read_tensors
from pipeline.storage import file_sha256
from specdiff.targets.fashion_mnist.classifier import SIDE, WEIGHTS, load_classifier

FASHION_MNIST = "fashion-mnist"
INCEPTION = "inception-v3-compat"
FEATURES, SCORES = "64", "logits"  # layers of the built-in target's classifier


class FashionMnistExtractor(torch_fidelity.FeatureExtractorBase):  # type: ignore[misc]
    """Penultimate activations of the Fashion-MNIST classifier, and its class scores.

    Colours become grey as the mean of the three channels, so that a grey image stored as RGB is what it was. Sizes
    other than 28×28 are refused, since resizing would be part of the score.
    """

    def __init__(
        self, name: str, features_list: list[str], feature_extractor_weights_path: str | None = None, **_: Any
    ) -> None:
        super().__init__(name, features_list)
        path = Path(feature_extractor_weights_path) if feature_extractor_weights_path else WEIGHTS
        self.classifier = load_classifier(path)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        # images uint8 [rows, 3 or 1, 28, 28] → float32 [rows, 64] and [rows, 10], as asked for
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"expected uint8 [rows, 3 or 1, {SIDE}, {SIDE}], got {images.dtype} {list(images.shape)}")
        if images.shape[2:] != (SIDE, SIDE):
            raise ValueError(f"images are {images.shape[3]}×{images.shape[2]} pixels, not {SIDE}×{SIDE}")
        features = self.classifier.features(images.float().mean(dim=1, keepdim=True))
        layers = {FEATURES: features}
        if SCORES in self.features_list:
            layers[SCORES] = self.classifier.head(features)
        return tuple(layers[name] for name in self.features_list)

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return (FEATURES, SCORES)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        return SCORES if metric == "isc" else FEATURES

    @staticmethod
    def can_be_compiled() -> bool:
        return True

    @staticmethod
    def get_dummy_input_for_compile() -> Tensor:
        return torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8)


if FASHION_MNIST not in FEATURE_EXTRACTORS_REGISTRY:
    torch_fidelity.register_feature_extractor(FASHION_MNIST, FashionMnistExtractor)


_CLASSES: dict[str, type[torch_fidelity.FeatureExtractorBase]] = {
    FASHION_MNIST: FashionMnistExtractor,
    INCEPTION: FeatureExtractorInceptionV3,
    **dict.fromkeys(CLIP, ClipExtractor),
    **dict.fromkeys(DINOV2, Dinov2Extractor),
}
_RESIZES = {
    FASHION_MNIST: "none",
    INCEPTION: "to 299×299, bilinear as in TensorFlow 1",
    **dict.fromkeys(CLIP, "to the network's size, bilinear as in TensorFlow 1"),
    **dict.fromkeys(DINOV2, "to 224×224, bilinear as in TensorFlow 1"),
}


@dataclass(frozen=True)
class Extractor:
    """A network and the layers that the metrics use, on one device.

    Attributes:
        name: in torch-fidelity's registry.
        weights_sha256: of the file with its weights.
        feature_layer: of FID, KID, precision and recall; score_layer: of the Inception Score, None where it is not
            asked for.
        resize: how it brings images to its own size.
    """

    name: str
    weights_sha256: str
    feature_layer: str
    score_layer: str | None
    resize: str
    network: Callable[[Tensor], tuple[Tensor, ...]]
    device: str

    @property
    def layers(self) -> tuple[str, ...]:
        return (self.feature_layer,) if self.score_layer is None else (self.feature_layer, self.score_layer)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Layers of images: uint8 [rows, 3, height, width] → float32 [rows, dimensions] each, on the CPU.

        Raises:
            ValueError: the extractor does not take images of this kind.
        """
        found = self.network(images.to(self.device))
        return {name: values.cpu() for name, values in zip(self.layers, found, strict=True)}


def check_extractor(name: str, weights: str | None, scores: bool = False) -> None:
    """Refuse what ``load_extractor`` could not load, as far as that can be told without loading or fetching anything.

    Raises:
        UsageError: an unknown name, no such file, or class scores of a network that knows no classes.
    """
    if name not in _CLASSES:
        raise UsageError(
            f"evaluate.extractor: {name} is not available; there are {', '.join(_CLASSES)}. "
            "Of torch-fidelity's others the code comes with the weights, and is not run."
        )
    if weights is not None and not Path(weights).is_file():
        raise UsageError(f"evaluate.weights: there is no file {weights}.")
    if scores and name not in (FASHION_MNIST, INCEPTION):
        raise UsageError(f"evaluate.metrics: inception_score needs class scores, which {name} does not have.")


def known_weights_sha256(name: str, weights: str | None) -> str | None:
    """Digest of the weights, where it can be had without fetching them."""
    if weights is not None:
        return file_sha256(weights)
    return file_sha256(str(WEIGHTS)) if name == FASHION_MNIST else None


def load_extractor(name: str, weights: str | None, device: str, scores: bool = False) -> Extractor:
    """Load an extractor.

    Args:
        name: ``fashion-mnist``, ``inception-v3-compat``, or one of the CLIP and DINOv2 networks.
        weights: a file to use instead of the extractor's own weights (the package's, or a download).
        device: where it runs, as torch names it.
        scores: whether class scores are wanted too.

    Raises:
        UsageError: an unknown name, or a file that does not hold such a network's weights.
        PipelineError: the weights cannot be fetched or read.
    """
    check_extractor(name, weights, scores)
    own = WEIGHTS if name == FASHION_MNIST else None
    path = Path(weights) if weights is not None else own or published_weights(name)
    if name == INCEPTION:
        read_tensors(path, name)  # torch-fidelity itself would run what a pickle file asks for
    registered = FEATURE_EXTRACTORS_REGISTRY[name]
    layer = registered.get_default_feature_layer_for_metric("fid")
    score_layer = registered.get_default_feature_layer_for_metric("isc") if scores else None
    layers = [layer] if score_layer is None else [layer, score_layer]
    try:
        network = _CLASSES[name](name, layers, feature_extractor_weights_path=str(path))
    except OSError as error:
        raise PipelineError(f"{path}: the weights cannot be read: {error}") from error
    except (RuntimeError, KeyError, ValueError, pickle.UnpicklingError, SafetensorError) as error:
        raise UsageError(f"{path}: these are not the weights of {name}: {error}") from error
    network.eval().requires_grad_(False).to(device)
    return Extractor(name, file_sha256(str(path)), layer, score_layer, _RESIZES[name], network, device)
