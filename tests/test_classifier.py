"""The shipped classifier and reference statistics: that they belong together and do what their names say."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from specdiff.targets.fashion_mnist.classifier import FEATURES, REFERENCE, WEIGHTS, load_classifier
from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER
from specdiff.targets.fashion_mnist.train_classifier import accuracy_of, as_tensors, features_of, shifted, train

needs_data = pytest.mark.skipif(not DEFAULT_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")


def promised_accuracy() -> float:
    with safe_open(WEIGHTS, "numpy") as file:
        return float(json.loads(file.metadata()["training"])["test_accuracy"])


def test_weights_are_small_and_say_how_good_they_are():
    assert WEIGHTS.stat().st_size < 1_000_000
    assert promised_accuracy() > 0.915


def test_reference_was_made_by_the_shipped_weights():
    with np.load(REFERENCE) as reference:
        said = json.loads(str(reference["said"]))
        assert said["extractor"] == "fashion-mnist"
        assert said["weights_sha256"] == hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
        assert reference["count"] == 10_000
        assert reference["mu"].shape == (FEATURES,)
        assert reference["sigma"].shape == (FEATURES, FEATURES)
        np.testing.assert_array_less(0, np.linalg.eigvalsh(reference["sigma"]))


@needs_data
def test_accuracy_and_reference_are_those_of_the_test_images():
    network = load_classifier()
    images, labels = as_tensors("t10k", DEFAULT_FOLDER)
    assert accuracy_of(network, images, labels) == pytest.approx(promised_accuracy(), abs=5e-4)
    features = features_of(network, images)
    with np.load(REFERENCE) as reference:
        np.testing.assert_allclose(reference["mu"], features.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(reference["sigma"], np.cov(features, rowvar=False), atol=1e-4)


def test_features_do_not_depend_on_the_other_rows():
    network = load_classifier()
    images = torch.randint(256, (9, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([network.features(image[None]) for image in images])
    torch.testing.assert_close(network.features(images), alone, rtol=1e-5, atol=1e-5)


def test_shifted_moves_all_rows_alike_by_a_pixel_at_most():
    images = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 14, 14] = 9
    offsets = set()
    for seed in range(50):
        moved = shifted(images, torch.Generator().manual_seed(seed))
        assert moved.shape == images.shape
        ((down, right),) = (moved.nonzero()[:, 2:].unique(dim=0) - 14).tolist()
        offsets.add((down, right))
    assert offsets == {(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)}


def test_training_is_repeatable():
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (300, 1, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (300,), generator=generator)
    first, second, other = (train(images, labels, epochs=2, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
