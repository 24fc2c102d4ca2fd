"""The built-in target: how fast it is sampled, and whether its pictures are of the class that was asked for."""

from typing import Any

import pytest
import torch

import specdiff
from specdiff import Request, Sampler
from specdiff.targets.fashion_mnist.classifier import load_classifier
from specdiff.targets.fashion_mnist.target import WEIGHTS


@pytest.fixture(scope="module")
def result() -> Any:
    target = specdiff.load_target("fashion-mnist", steps=250)
    sampler = Sampler(target, verification="block", drafter="free", orthogonal="kept", draft_length=7, lanes=16)
    return sampler.sample([Request(key=str(i), seed=i, label=i % 10) for i in range(48)])


def test_speed_up_at_250_steps(result: Any) -> None:
    assert result.stats.sequential_speedup >= 4.3
    assert result.stats.block_efficiency == result.stats.sequential_speedup  # a Free round is one call


def test_pictures_are_of_the_class_asked_for(result: Any) -> None:
    """By our classifier, which is right for 92 % of real pictures."""
    pixels = torch.stack([torch.from_numpy(sample.image).permute(2, 0, 1) for sample in result.samples])
    guesses = load_classifier()(pixels).argmax(1)
    assert (guesses == torch.arange(48) % 10).float().mean() > 0.75


def test_weights_are_small_and_described() -> None:
    info = specdiff.inspect_target("fashion-mnist")
    assert info.weights_sha256 is not None
    assert len(info.class_names) == info.num_classes == 10

    assert WEIGHTS.stat().st_size < 8_000_000
