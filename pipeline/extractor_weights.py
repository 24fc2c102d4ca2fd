"""Weights of the feature extractors: the published ones, and reading a file of them without running it."""

from __future__ import annotations

import pickle
from pathlib import Path
from urllib.error import URLError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch_fidelity.feature_extractor_clip import MODEL_METADATA, MODEL_URLS
from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

from pipeline.errors import PipelineError, UsageError
from pipeline.storage import file_sha256

DINOV2 = {"dinov2-vit-s-14": "dinov2_vits14", "dinov2-vit-b-14": "dinov2_vitb14", "dinov2-vit-l-14": "dinov2_vitl14"}
URLS = {
    "inception-v3-compat": URL_INCEPTION_V3,
    **MODEL_URLS,
    **{name: f"https://dl.fbaipublicfiles.com/dinov2/{their}/{their}_pretrain.pth" for name, their in DINOV2.items()},
}


def published_weights(name: str) -> Path:
    """The extractor's own weights in torch's cache, fetched if they are not there yet.

    Raises:
        PipelineError: they cannot be fetched, with what to do instead.
    """
    url = URLS[name]
    file = url.rpartition("/")[2]
    expected = MODEL_METADATA[name]["hash"] if name in MODEL_METADATA else None
    path = Path(torch.hub.get_dir(), "checkpoints", f"{name}-{file}" if expected else file)
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), hash_prefix=expected, progress=False)
        except (OSError, URLError, RuntimeError) as error:
            raise PipelineError(
                f"the weights of {name} could not be fetched ({error}). Where there is a network, fetch {url}, then "
                "name that file as evaluate.weights, or as --weights of `specdiff stats`."
            ) from error
    return path


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a weights file: safetensors, or what torch can read as nothing but tensors.

    CLIP's published files are TorchScript archives, which torch reads only by running them; they are taken where their
    digest is the published one.

    Raises:
        UsageError: it is nothing of the kind.
        PipelineError: it cannot be read.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if name in MODEL_METADATA and file_sha256(str(path)) == MODEL_METADATA[name]["hash"]:
            archive: dict[str, Tensor] = torch.jit.load(str(path), map_location="cpu").state_dict()
            return archive
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise PipelineError(f"{path}: the weights cannot be read: {error}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        raise UsageError(f"{path}: not weights that are safe to read: {error}") from error
    if not isinstance(tensors, dict) or not all(isinstance(each, Tensor) for each in tensors.values()):
        raise UsageError(f"{path}: not the weights of {name}: it holds something else than named tensors")
    return tensors
