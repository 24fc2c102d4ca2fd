"""Feature extractors from torch-fidelity's registry, to which the built-in target's classifier is added."""

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
from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3
from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY
from torch_fidelity.utils import create_feature_extractor

from pipeline.errors import PipelineError, UsageError
from specdiff.targets.fashion_mnist.classifier import SIDE, WEIGHTS, load_classifier

FASHION_MNIST = "fashion-mnist"
INCEPTION = "inception-v3-compat"


class FashionMnistExtractor(torch_fidelity.FeatureExtractorBase):  # type: ignore[misc]
    """Penultimate activations of the Fashion-MNIST classifier.

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
        # images uint8 [rows, 3 or 1, 28, 28] → (float32 [rows, 64],)
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"expected uint8 [rows, 3 or 1, {SIDE}, {SIDE}], got {images.dtype} {list(images.shape)}")
        if images.shape[2:] != (SIDE, SIDE):
            raise ValueError(f"images are {images.shape[3]}×{images.shape[2]} pixels, not {SIDE}×{SIDE}")
        return (self.classifier.features(images.float().mean(dim=1, keepdim=True)),)

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return ("64",)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        return "64"

    @staticmethod
    def can_be_compiled() -> bool:
        return True

    @staticmethod
    def get_dummy_input_for_compile() -> Tensor:
        return torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8)


if FASHION_MNIST not in FEATURE_EXTRACTORS_REGISTRY:
    torch_fidelity.register_feature_extractor(FASHION_MNIST, FashionMnistExtractor)


@dataclass(frozen=True)
class Extractor:
    """A network from torch-fidelity's registry and the layer that FID uses, on one device."""

    name: str
    network: Callable[[Tensor], tuple[Tensor, ...]]
    device: str

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Features of images: uint8 [rows, 3, height, width] → float32 [rows, dimensions], on the CPU.

        Raises:
            ValueError: the extractor does not take images of this kind.
        """
        (features,) = self.network(images.to(self.device))
        return features.cpu()


def check_extractor(name: str, weights: str | None) -> None:
    """Refuse what ``load_extractor`` could not load, as far as that can be told without loading or fetching anything.

    Raises:
        UsageError: an unknown name, or no such file.
    """
    if name not in (FASHION_MNIST, INCEPTION):
        raise UsageError(
            f"evaluate.extractor: {name} is not available; there are {FASHION_MNIST} and {INCEPTION}. "
            "Most of torch-fidelity's others run code that comes with their weights."
        )
    if weights is not None and not Path(weights).is_file():
        raise UsageError(f"evaluate.weights: there is no file {weights}.")


def load_extractor(name: str, weights: str | None, device: str) -> Extractor:
    """Load an extractor, for FID.

    Args:
        name: ``fashion-mnist`` or ``inception-v3-compat``.
        weights: a file to use instead of the extractor's own weights (the package's, or torch-fidelity's download).
        device: where it runs, as torch names it.

    Raises:
        UsageError: an unknown name, or a file that does not hold such a network's weights.
        PipelineError: the weights cannot be fetched or read.
    """
    check_extractor(name, weights)
    if name == INCEPTION:
        _vet_inception_weights(weights)
    layer = FEATURE_EXTRACTORS_REGISTRY[name].get_default_feature_layer_for_metric("fid")
    try:
        network = create_feature_extractor(
            name, [layer], cuda=False, feature_extractor_weights_path=weights, verbose=False
        )
    except OSError as error:
        raise PipelineError(f"{weights or name}: the weights cannot be read: {error}") from error
    except (RuntimeError, SafetensorError) as error:
        raise UsageError(f"{weights or name}: these are not the weights of {name}: {error}") from error
    return Extractor(name, network.to(device), device)


def _vet_inception_weights(weights: str | None) -> None:
    """Have torch read the weights as nothing but tensors: torch-fidelity itself would run what a pickle file asks for.

    Without a file they are fetched to torch's own cache, where torch-fidelity then finds them.
    """
    try:
        if weights is None:
            torch.hub.load_state_dict_from_url(URL_INCEPTION_V3, progress=False, weights_only=True, map_location="cpu")
        else:
            torch.load(weights, map_location="cpu", weights_only=True)
    except OSError as error:
        if weights is not None:
            raise PipelineError(f"{weights}: the weights cannot be read: {error}") from error
        raise PipelineError(
            f"the weights of {INCEPTION} could not be fetched ({error}). Where there is a network, fetch "
            f"{URL_INCEPTION_V3}, then name that file as evaluate.weights."
        ) from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UsageError(f"{weights or URL_INCEPTION_V3}: not weights that are safe to read: {error}") from error
