"""FID over committed Parquet: equal to torch-fidelity's own, and refused where it would mislead."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_fidelity
from committed_set import job, write_set
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.metric_fid import fid_features_to_statistics
from torch_fidelity.utils import create_feature_extractor, get_featuresdict_from_dataset

from pipeline.commits import committed
from pipeline.encoding import encode
from pipeline.errors import PipelineError, UsageError
from pipeline.evaluation import Moments, check_evaluation, evaluate, fid, load_reference, moments_of_file, rgb
from pipeline.extractors import FASHION_MNIST, load_extractor
from pipeline.spec import EvaluateSpec
from pipeline.storage import Storage
from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER, load_split

needs_data = pytest.mark.skipif(not DEFAULT_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")


@pytest.fixture(scope="module")
def clothes() -> np.ndarray:
    """uint8 [600, 28, 28, 1]: blurred noise where the real images are not installed."""
    if DEFAULT_FOLDER.exists():
        return load_split("t10k")[0][:600, :, :, None].copy()
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(600, 1, 28, 28, generator=generator) * torch.rand(600, 1, 1, 1, generator=generator)
    blurred = torch.nn.functional.avg_pool2d(noise, 5, stride=1, padding=2)
    return (255 * blurred).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def write_pictures(folder: Path, images: np.ndarray) -> str:
    folder.mkdir()
    for number, image in enumerate(images):
        (folder / f"{number:04}.png").write_bytes(encode(image, "png"))
    return str(folder)


def write_reference(path: Path, moments: Moments, **more: object) -> str:
    np.savez(path, mu=moments.mean(), sigma=moments.covariance(), **more)
    return str(path)


def moments_of(
    storage: Storage, batch: int = 64, extractor: str = "fashion-mnist", weights: str | None = None
) -> Moments:
    network = load_extractor(extractor, weights, "cpu")
    return reduce(add, (moments_of_file(storage, record, network, batch) for record in committed(storage)))


def score(storage: Storage, **settings: object) -> dict[str, object]:
    return evaluate(storage, job(**settings), partial=False, threads=1, device="cpu")["fid"]


@pytest.mark.parametrize("files", [1, 2, 5])
def test_equals_torch_fidelity_on_the_same_images(tmp_path, clothes, files):
    theirs = torch_fidelity.calculate_metrics(
        input1=write_pictures(tmp_path / "a", clothes[:300]),
        input2=write_pictures(tmp_path / "b", clothes[300:]),
        fid=True,
        feature_extractor="fashion-mnist",
        cuda=False,
        cache=False,
        save_cpu_ram=True,
        verbose=False,
    )["frechet_inception_distance"]
    (tmp_path / "reference").mkdir()
    other = moments_of(write_set(tmp_path / "reference", clothes[300:]))
    storage = write_set(tmp_path, clothes[:300], files=files)
    ours = score(storage, reference=write_reference(tmp_path / "b.npz", other, count=300))
    assert ours["value"] == pytest.approx(theirs, rel=1e-6)
    assert (ours["count"], ours["reference_count"], ours["extractor"]) == (300, 300, "fashion-mnist")


def test_inception_statistics_are_torch_fidelitys(tmp_path, clothes, monkeypatch):
    """With random weights from a file. Twelve images leave FID itself to rounding: 2048 features, 11 dimensions."""
    empty, weights = tmp_path / "empty.pth", tmp_path / "inception.pth"
    torch.save({}, empty)
    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        network = create_feature_extractor(
            "inception-v3-compat", ["2048"], cuda=False, verbose=False, feature_extractor_weights_path=str(empty)
        )
    torch.save(network.state_dict(), weights)
    images = torch.from_numpy(clothes[:12]).permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    features = get_featuresdict_from_dataset(list_dataset(images), network, 5, False, True, False)["2048"]
    theirs = fid_features_to_statistics(features)

    ours = moments_of(write_set(tmp_path, clothes[:12], files=2), 4, "inception-v3-compat", str(weights))
    scale = theirs["sigma"].diagonal().max()
    np.testing.assert_allclose(ours.mean(), theirs["mu"], rtol=1e-5)
    np.testing.assert_allclose(ours.covariance(), theirs["sigma"], rtol=1e-4, atol=1e-6 * scale)


def list_dataset(images: torch.Tensor) -> torch.utils.data.Dataset:
    class Images(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> torch.Tensor:
            return images[index]

    return Images()


def test_case_21_a_set_is_at_no_distance_from_its_own_moments(tmp_path, clothes):
    storage = write_set(tmp_path, clothes[:200])
    moments = moments_of(storage)
    value = score(storage, reference=write_reference(tmp_path / "itself.npz", moments))["value"]
    assert abs(value) < 1e-9 * np.trace(moments.covariance())


def test_neither_batch_size_nor_number_of_files_matters(tmp_path, clothes):
    """To 1e-6 of the score: the batch size decides how the network's sums are rounded in float32."""
    reference = load_reference(
        write_reference(tmp_path / "r.npz", moments_of(write_set(tmp_path, clothes))), FASHION_MNIST
    )
    values = []
    for files, batch in ((1, 64), (1, 7), (2, 64), (5, 1), (5, 1000)):
        folder = tmp_path / f"{files}-{batch}"
        folder.mkdir()
        moments = moments_of(write_set(folder, clothes[:150], files=files), batch)
        values.append(fid(moments, reference, FASHION_MNIST)["value"])
    assert values == pytest.approx([values[0]] * len(values), rel=1e-6)


@needs_data
def test_noise_raises_the_score(tmp_path, clothes):
    """Far beyond what 600 images leave to chance: 0.16 ± 0.03 as they are, 0.75 ± 0.09 with this noise."""
    noise = np.random.default_rng(0).normal(0, 10, clothes.shape)
    (tmp_path / "noisy").mkdir()
    noisy = write_set(tmp_path / "noisy", np.clip(clothes + noise, 0, 255).round().astype(np.uint8))
    clean = score(write_set(tmp_path, clothes))
    assert clean["value"] < 0.3
    assert score(noisy)["value"] > clean["value"] + 0.3
    assert clean["reference_count"] == 10_000


def test_case_20_grey_counts_as_three_equal_channels(tmp_path, clothes):
    (tmp_path / "rgb").mkdir()
    grey = score(write_set(tmp_path, clothes[:100]))
    colour = score(write_set(tmp_path / "rgb", clothes[:100].repeat(3, axis=3)))
    assert grey == colour


def test_case_20_a_format_that_loses_detail_is_warned_of(tmp_path, clothes):
    lossy = job()
    lossy = lossy.model_copy(update={"output": lossy.output.model_copy(update={"image_format": "jpeg"})})
    storage = write_set(tmp_path, clothes[:100])
    notes = evaluate(storage, lossy, partial=False, threads=1, device="cpu")["fid"]["notes"]
    assert notes == ["jpeg loses detail: that counts as distance, unless the reference lost it too"]


def test_too_few_images_for_the_features_are_marked(tmp_path, clothes):
    few = score(write_set(tmp_path, clothes[:64]))
    assert few["notes"] == ["64 images for 64 features: too few to judge the set by"]


def test_one_image_is_refused(tmp_path, clothes):
    with pytest.raises(PipelineError, match="two images at least"):
        score(write_set(tmp_path, clothes[:1]))


def test_an_incomplete_set_is_scored_only_when_asked(tmp_path, clothes):
    storage = write_set(tmp_path, clothes[:80], rows=100)
    with pytest.raises(PipelineError, match=r"20 rows have no image yet.*--partial") as refused:
        score(storage)
    assert refused.value.exit_code == 1
    asked = evaluate(storage, job(), partial=True, threads=1, device="cpu")["fid"]
    assert asked == score(storage, partial=True)
    assert asked["count"] == 80
    assert asked["notes"] == ["partial: 20 rows have no image"]


def test_nothing_is_computed_unasked(tmp_path, clothes):
    unasked = job().model_copy(update={"evaluate": None})
    assert evaluate(write_set(tmp_path, clothes[:3]), unasked, partial=False, threads=1, device="cpu") == {}


def test_a_file_that_holds_less_than_its_record_is_named(tmp_path, clothes):
    storage = write_set(tmp_path, clothes[:5])
    (record,) = committed(storage)
    network = load_extractor("fashion-mnist", None, "cpu")
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet has 5 images where its record says 6"):
        moments_of_file(storage, replace(record, written=6), network)


def test_images_of_a_size_that_the_extractor_does_not_take(tmp_path, clothes):
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet.*26×28 pixels, not 28×28"):
        score(write_set(tmp_path, np.ascontiguousarray(clothes[:3, :, 1:-1])))


def test_case_20_transparent_images_are_refused_by_key(tmp_path):
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet: 000000000000: .*mode RGBA"):
        score(write_set(tmp_path, np.zeros((3, 28, 28, 4), np.uint8)))


WHOLE = encode(np.random.default_rng(0).integers(256, size=(28, 28, 1), dtype=np.uint8), "png")


@pytest.mark.parametrize("data", [b"", b"no picture", WHOLE[:-100]], ids=["empty", "text", "cut short"])
def test_broken_images_are_refused_by_name(data):
    with pytest.raises(PipelineError, match="file: key: the picture cannot be read"):
        rgb(data, "file: key")


def test_palette_images_are_refused(tmp_path):
    Image.new("P", (28, 28)).save(tmp_path / "p.png")
    with pytest.raises(PipelineError, match="mode P"):
        rgb((tmp_path / "p.png").read_bytes(), "file")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mu": np.zeros(64)}, "not an npz file with mu and sigma"),
        ({"mu": np.zeros(64), "sigma": np.zeros((64, 32))}, "finite mean"),
        ({"mu": np.full(64, np.nan), "sigma": np.eye(64)}, "finite mean"),
        ({"mu": np.array(["a"]), "sigma": np.eye(1)}, "not an npz file"),
        ({"mu": np.array([{}], dtype=object), "sigma": np.eye(1)}, "not an npz file"),
        ({"mu": np.zeros(64), "sigma": np.eye(64), "extractor": "other"}, "made by the extractor other"),
    ],
)
def test_references_that_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        load_reference(str(tmp_path / "r.npz"), "fashion-mnist")


def test_references_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        load_reference(str(tmp_path / "r.npz"), "fashion-mnist")
    with pytest.raises(UsageError, match="neither a registered reference"):
        load_reference("fashion_mnist", "fashion-mnist")
    (tmp_path / "text.npz").write_text("mu, sigma")
    with pytest.raises(UsageError, match="not an npz file"):
        load_reference(str(tmp_path / "text.npz"), "fashion-mnist")


def test_a_reference_of_other_features_is_refused(tmp_path, clothes):
    reference = tmp_path / "r.npz"
    np.savez(reference, mu=np.zeros(2048), sigma=np.eye(2048))
    with pytest.raises(UsageError, match="2048 dimensions, and fashion-mnist computes 64"):
        score(write_set(tmp_path, clothes[:3]), reference=str(reference))


def test_what_cannot_be_evaluated_is_refused_beforehand(tmp_path):
    check_evaluation(EvaluateSpec(extractor="fashion-mnist", reference="fashion-mnist"))
    with pytest.raises(UsageError, match=r"evaluate\.extractor: vgg16 is not available"):
        check_evaluation(EvaluateSpec(extractor="vgg16", reference="fashion-mnist"))
    with pytest.raises(UsageError, match=r"evaluate\.weights: there is no file"):
        check_evaluation(EvaluateSpec(reference="fashion-mnist", weights=str(tmp_path / "none")))
    with pytest.raises(UsageError, match="made by the extractor fashion-mnist"):
        check_evaluation(EvaluateSpec(reference="fashion-mnist"))


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("save", [torch.save, lambda what, path: Path(path).write_bytes(pickle.dumps(what))])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_weights_that_would_run_code_are_refused_unrun(tmp_path, save):
    save({"fc.bias": Trap(tmp_path / "sprung")}, tmp_path / "weights.pth")
    with pytest.raises(UsageError, match="not weights that are safe to read"):
        load_extractor("inception-v3-compat", str(tmp_path / "weights.pth"), "cpu")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("extractor", ["fashion-mnist", "inception-v3-compat"])
def test_weights_of_something_else_are_refused(tmp_path, extractor):
    torch.save({"bias": torch.zeros(3)}, tmp_path / "weights.pth")
    with pytest.raises(UsageError, match="not the weights of"):
        load_extractor(extractor, str(tmp_path / "weights.pth"), "cpu")


def test_weights_that_cannot_be_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: refused at once
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(PipelineError, match=r"could not be fetched.*evaluate\.weights") as refused:
        load_extractor("inception-v3-compat", None, "cpu")
    assert refused.value.exit_code == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 5), st.floats(-1e3, 1e3), st.integers(0, 2**32 - 1))
def test_moments_of_parts_add_up(rows, dimensions, offset, seed):
    features = np.random.default_rng(seed).normal(offset, 1, (rows, dimensions)).astype(np.float32)
    parts = [Moments.of(torch.from_numpy(part)) for part in np.array_split(features, 2) if len(part)]
    moments = reduce(add, parts)
    exact = features.astype(np.float64)
    assert moments.count == rows
    np.testing.assert_allclose(moments.mean(), exact.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.covariance(), np.cov(exact, rowvar=False).reshape(dimensions, -1), atol=1e-7)
