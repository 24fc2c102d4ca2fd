"""CLIP's image tower from plain tensors, as torch-fidelity builds and applies it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_fidelity import FeatureExtractorBase
from torch_fidelity.feature_extractor_clip import FeatureExtractorCLIP, build_model

from pipeline.extractor_weights import published_weights, read_tensors


class ClipExtractor(FeatureExtractorCLIP):  # type: ignore[misc]
    """torch-fidelity's, but for the way its weights are read: `torch.jit.load` runs what a file holds."""

    def __init__(
        self, name: str, features_list: list[str], feature_extractor_weights_path: str | None = None, **_: Any
    ) -> None:
        """Raises PipelineError for weights that cannot be had, KeyError or RuntimeError for another network's."""
        FeatureExtractorBase.__init__(self, name, features_list)
        self.feature_extractor_internal_dtype = torch.float32
        path = Path(feature_extractor_weights_path) if feature_extractor_weights_path else published_weights(name)
        self.model = build_model(read_tensors(path, name), torch.float32)
        self.resolution = self.model.visual.input_resolution
