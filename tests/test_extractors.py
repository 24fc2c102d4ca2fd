"""Extractors give what their networks give elsewhere, and read weights without running what comes with them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer as Published
from torch import Tensor, nn
from torch_fidelity.feature_extractor_clip import CLIPVisual, FeatureExtractorCLIP

from pipeline.dinov2 import VisionTransformer
from pipeline.errors import PipelineError, UsageError
from pipeline.extractors import load_extractor

IMAGES = torch.randint(256, (3, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def random_weights(network: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: 0.05 * torch.randn(value.shape, generator=generator) for name, value in network.state_dict().items()}


def test_dinov2_is_the_published_network() -> None:
    """Whose architecture `timm` has too; at the size it was trained at, where no positions are interpolated."""
    published = Published(img_size=56, patch_size=14, embed_dim=128, depth=2, num_heads=2, init_values=1, num_classes=0)
    weights = random_weights(published)
    published.load_state_dict(weights)
    ours = VisionTransformer.of(weights | {"mask_token": torch.zeros(1, 128)})
    images = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), published.eval()(images))
        assert ours(images[..., :42, :42]).shape == (2, 128)


def test_dinov2_extracts_features(tmp_path: Path) -> None:
    weights = random_weights(VisionTransformer(width=64, depth=1, patch=14, grid=3))
    torch.save(weights, tmp_path / "dino.pth")
    extractor = load_extractor("dinov2-vit-s-14", str(tmp_path / "dino.pth"), "cpu")
    features = extractor(IMAGES)["dinov2"]
    assert features.shape == (3, 64)
    assert features.std(0).min() > 0


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_clip_extracts_what_torch_fidelity_does(tmp_path: Path, suffix: str) -> None:
    tower = CLIPVisual(embed_dim=32, image_resolution=32, vision_layers=1, vision_width=64, vision_patch_size=8)
    # Published weights are float16, and torch-fidelity passes them through it.
    weights = {name: value.half().float() for name, value in random_weights(tower).items()}
    weights["text_projection"] = torch.zeros(16, 32)
    path = str(tmp_path / f"clip.{suffix}")
    save_file(weights, path) if suffix == "safetensors" else torch.save(weights, path)
    features = load_extractor("clip-vit-b-32", path, "cpu")(IMAGES)["clip"]

    class Archive(nn.Module):
        """What the published files are: a TorchScript archive of the whole of CLIP."""

        def __init__(self) -> None:
            super().__init__()
            self.visual = tower.visual
            self.text_projection = nn.Parameter(weights["text_projection"])

        def forward(self, x: Tensor) -> Tensor:
            return x

    archive = Archive()
    archive.load_state_dict(weights)
    torch.jit.script(archive).save(str(tmp_path / "archive.pt"))
    path = str(tmp_path / "archive.pt")
    theirs = FeatureExtractorCLIP("clip-vit-b-32", ["clip"], feature_extractor_weights_path=path)
    torch.testing.assert_close(features, theirs(IMAGES)[0])
    with pytest.raises(UsageError, match="not weights that are safe to read"):
        load_extractor("clip-vit-b-32", path, "cpu")


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("extractor", ["inception-v3-compat", "clip-vit-b-32", "dinov2-vit-s-14"])
@pytest.mark.parametrize("save", [torch.save, lambda what, path: Path(path).write_bytes(pickle.dumps(what))])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_weights_that_would_run_code_are_refused_unrun(tmp_path, save, extractor):
    save({"fc.bias": Trap(tmp_path / "sprung")}, tmp_path / "weights.pth")
    with pytest.raises(UsageError, match="not weights that are safe to read"):
        load_extractor(extractor, str(tmp_path / "weights.pth"), "cpu")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("extractor", ["fashion-mnist", "inception-v3-compat", "clip-vit-b-32", "dinov2-vit-s-14"])
def test_weights_of_something_else_are_refused(tmp_path, extractor):
    torch.save({"bias": torch.zeros(3)}, tmp_path / "weights.pth")
    with pytest.raises(UsageError, match="not the weights of"):
        load_extractor(extractor, str(tmp_path / "weights.pth"), "cpu")
    torch.save([torch.zeros(3)], tmp_path / "weights.pth")
    with pytest.raises(UsageError, match="not the weights of"):
        load_extractor(extractor, str(tmp_path / "weights.pth"), "cpu")


@pytest.mark.parametrize("extractor", ["inception-v3-compat", "clip-vit-b-32", "dinov2-vit-s-14"])
def test_weights_that_cannot_be_fetched(tmp_path, monkeypatch, extractor):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: refused at once
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(PipelineError, match=r"could not be fetched.*evaluate\.weights") as refused:
        load_extractor(extractor, None, "cpu")
    assert refused.value.exit_code == 1
