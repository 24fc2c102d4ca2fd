"""Metrics of a set are torch-fidelity's own of the same images, however the set is divided."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_fidelity
from clothes import Images, clothes, lowest, write_pictures
from committed_set import job, write_set
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from pipeline.class_scores import PERIOD, ClassScores, splits_of
from pipeline.commits import committed
from pipeline.evaluation import evaluate
from pipeline.extractors import load_extractor
from pipeline.feature_store import compute_features, store_features
from pipeline.moments import Gaussian, Moments, frechet, quick_frechet, without_rounding
from pipeline.storage import Storage
from pipeline.subset import Subset

ALL = ["fid", "inception_score", "kid", "precision_recall"]
COUNT = 300


def theirs(
    a: NDArray[np.uint8], b: NDArray[np.uint8], extractor: str = "fashion-mnist", **more: Any
) -> dict[str, float]:
    options = {"cuda": False, "cache": False, "save_cpu_ram": True, "verbose": False, **more}
    found: dict[str, float] = torch_fidelity.calculate_metrics(
        input1=Images(a), input2=Images(b), feature_extractor=extractor, **options
    )
    return found


@cache
def expected() -> dict[str, float]:
    """Of the first 300 pictures against the next 300; subsets in the order of the hashes of their keys and names."""
    images, _ = clothes(2 * COUNT)
    a, b = images[:COUNT], images[COUNT:]
    found = theirs(a, b, fid=True, isc=True)
    a = a[lowest([f"{row:012}" for row in range(COUNT)], COUNT)]
    b = b[lowest([f"{row:04}.png" for row in range(COUNT)], COUNT)]
    return found | theirs(a, b, kid=True, prc=True, kid_subset_size=COUNT)


def scored(storage: Storage, **evaluation: Any) -> dict[str, dict[str, Any]]:
    return evaluate(storage, job(metrics=ALL, **evaluation), partial=False, threads=1, device="cpu")


@pytest.mark.parametrize(("files", "batch"), [(1, 64), (2, 64), (5, 64), (1, 7), (5, 1000)])
def test_metrics_are_torch_fidelitys_for_any_files_and_batches(tmp_path: Path, files: int, batch: int) -> None:
    """To 1e-6 of the score: the batch size decides how the network's sums are rounded in float32.

    KID is a small difference of large means, and so compared to 1e-6 of those, which are about 1.
    """
    images, _ = clothes(2 * COUNT)
    reference = write_pictures(tmp_path / "reference", images[COUNT:])
    storage = write_set(tmp_path / "set", images[:COUNT], files=files)
    extractor = load_extractor("fashion-mnist", None, "cpu", scores=True)
    for record in committed(storage):
        store_features(storage, record, extractor, compute_features(storage, record, extractor, batch))
    found = scored(storage, reference=reference)
    right = expected()
    assert found["fid"]["value"] == pytest.approx(right["frechet_inception_distance"], rel=1e-6)
    assert found["inception_score"]["value"] == pytest.approx(right["inception_score_mean"], rel=1e-6)
    assert found["inception_score"]["std"] == pytest.approx(right["inception_score_std"], rel=1e-5)
    assert found["kid"]["value"] == pytest.approx(right["kernel_inception_distance_mean"], rel=1e-6, abs=1e-6)
    assert found["precision"]["value"] == pytest.approx(right["precision"], abs=1e-9)
    assert found["recall"]["value"] == pytest.approx(right["recall"], abs=1e-9)
    assert all((each["count"], each["extractor"]) == (COUNT, "fashion-mnist") for each in found.values())
    assert found["fid"]["reference_count"] == COUNT


def test_folders_of_pictures_as_torch_fidelity_reads_them(tmp_path: Path) -> None:
    images, _ = clothes(2 * COUNT)
    a, b = (write_pictures(tmp_path / name, part) for name, part in (("a", images[:COUNT]), ("b", images[COUNT:])))
    found = torch_fidelity.calculate_metrics(
        input1=a,
        input2=b,
        fid=True,
        feature_extractor="fashion-mnist",
        cuda=False,
        cache=False,
        verbose=False,
        save_cpu_ram=True,
    )
    assert found["frechet_inception_distance"] == pytest.approx(expected()["frechet_inception_distance"], rel=1e-9)


@pytest.fixture(scope="module")
def inception_weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Inception-v3 with random weights whose scale is kept from layer to layer."""
    folder = tmp_path_factory.mktemp("inception")
    torch.save({}, folder / "empty.pth")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
        network = FeatureExtractorInceptionV3(
            "inception-v3-compat", ["2048"], feature_extractor_weights_path=str(folder / "empty.pth")
        )
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    torch.save(network.state_dict(), folder / "inception.pth")
    return str(folder / "inception.pth")


def test_inception_metrics_are_torch_fidelitys(tmp_path: Path, inception_weights: str) -> None:
    """With random weights. Ten images and six in 2048 dimensions: rounding of FID is still far below 1e-6 of it."""
    images, _ = clothes(16)
    options = {"fid": True, "isc": True, "feature_extractor_weights_path": inception_weights}
    right = theirs(images[:10], images[10:], "inception-v3-compat", **options)
    reference = write_pictures(tmp_path / "reference", images[10:])
    settings = {"extractor": "inception-v3-compat", "weights": inception_weights, "reference": reference}
    storage = write_set(tmp_path / "set", images[:10], files=2)
    found = evaluate(
        storage, job(metrics=["fid", "inception_score"], **settings), partial=False, threads=1, device="cpu"
    )
    assert found["fid"]["value"] > 1e-3
    assert found["fid"]["value"] == pytest.approx(right["frechet_inception_distance"], rel=1e-6)
    assert found["inception_score"]["value"] == pytest.approx(right["inception_score_mean"], rel=1e-6)
    assert "10 images for 2048 features: too few to judge the set by" in found["fid"]["warnings"]


def test_each_class_is_scored_where_it_has_images_enough(tmp_path: Path) -> None:
    images, labels = clothes(2000)
    assert min(np.bincount(labels[:1000])) > 64
    reference = write_set(tmp_path / "reference", images[1000:], labels[1000:].tolist())
    found = evaluate(
        write_set(tmp_path / "set", images[:1000], labels[:1000].tolist(), files=3),
        job(reference=reference.uri),
        partial=False,
        threads=1,
        device="cpu",
    )["fid"]
    assert sorted(found["per_class"]) == [str(label) for label in range(10)]
    of_class = [images[:1000][labels[:1000] == 3], images[1000:][labels[1000:] == 3]]
    right = theirs(*of_class, fid=True)["frechet_inception_distance"]
    assert found["per_class"]["3"] == pytest.approx(right, rel=1e-6)


def test_the_noise_floor_is_a_like_number_of_reference_images_against_the_others(tmp_path: Path) -> None:
    images, _ = clothes(700)
    reference = write_pictures(tmp_path / "reference", images[100:])
    found = scored(write_set(tmp_path / "set", images[:100]), reference=reference)
    order = lowest([f"{row:04}.png" for row in range(600)], 600)
    a, b = images[100:][order[:100]], images[100:][order[300:]]
    right = theirs(a, b, fid=True, kid=True, prc=True, kid_subset_size=100)
    assert found["fid"]["noise_floor"] == pytest.approx(right["frechet_inception_distance"], rel=1e-5)
    assert found["fid"]["noise_floor_counts"] == [100, 300]
    assert found["kid"]["noise_floor"] == pytest.approx(right["kernel_inception_distance_mean"], rel=1e-6, abs=1e-6)
    assert found["precision"]["noise_floor"] == pytest.approx(right["precision"])
    assert found["inception_score"]["noise_floor"] is None


def test_splits_are_torch_fidelitys_and_their_memory_is_bounded() -> None:
    order = np.random.RandomState(2020).permutation(57)
    assert [sorted(np.flatnonzero(splits_of(57) == i)) for i in range(10)] == [
        sorted(order[i * 57 // 10 : (i + 1) * 57 // 10]) for i in range(10)
    ]
    scores = ClassScores(3 * PERIOD)
    scores.add(np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32))
    assert len(splits_of(PERIOD)) == PERIOD
    assert np.isfinite(scores.score()).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 5), st.floats(-1e3, 1e3), st.integers(0, 2**32 - 1))
def test_moments_of_parts_add_up(rows: int, dimensions: int, offset: float, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(offset, 1, (rows, dimensions)).astype(np.float32)
    first, *others = [Moments.of(part) for part in np.array_split(vectors, 2) if len(part)]
    moments = sum(others, first)
    exact = vectors.astype(np.float64)
    assert moments.count == rows
    np.testing.assert_allclose(moments.mean(), exact.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.covariance(), np.cov(exact, rowvar=False).reshape(dimensions, -1), atol=1e-7)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_the_quick_distance_is_the_same(dimensions: int, rows: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    a, b = (Moments.of(chance.normal(size=(rows, dimensions)).astype(np.float32)).gaussian() for _ in range(2))
    assert quick_frechet(a, b) == pytest.approx(frechet(a, b), abs=1e-6 * np.trace(a.sigma))


def test_a_distance_below_rounding_is_none() -> None:
    unit = Gaussian(9, np.zeros(3), np.eye(3))
    assert without_rounding(2.9e-4, unit) == without_rounding(-2.9e-4, unit) == 0
    assert without_rounding(3.1e-4, unit) == 3.1e-4


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_subset_does_not_depend_on_order_or_parts(rows: int, limit: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    hashes = chance.permutation(1000)[:rows].astype(np.uint64)
    vectors, labels = hashes[:, None].astype(np.float32), hashes.astype(np.int64)
    subset = Subset(limit)
    for part in np.array_split(chance.permutation(rows), 4):
        subset.add(hashes[part], vectors[part], labels[part])
    found, features_found, labels_found = subset.lowest()
    assert found.tolist() == sorted(hashes.tolist())[:limit] == features_found[:, 0].tolist() == labels_found.tolist()
