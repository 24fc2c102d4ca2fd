"""What the Picard drafter and the Kalman gain save on the built-in target, in sequential calls and evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import specdiff
from specdiff import Gain, Request, Sampler, Stats
from specdiff.bench import timed_image
from specdiff.clock import clocked

FREE: dict[str, Any] = {"drafter": "free", "verification": "block"}
PICARD: dict[str, Any] = {"drafter": "picard", "verification": "reflection", "gain": "kalman"}


def requests(count: int, first: int = 0) -> list[Request]:
    return [Request(str(i), i, label=i % 10) for i in range(first, first + count)]


@cache
def clothes(steps: int) -> Any:
    return specdiff.load_target("fashion-mnist", steps=steps)


def stats(steps: int, count: int, draft_length: int, **settings: Any) -> Stats:
    sampler = Sampler(clothes(steps), draft_length=draft_length, lanes=min(count, 16), **settings)
    return sampler.sample(requests(count)).stats


@pytest.mark.parametrize(("draft_length", "saved"), [(7, 0.10), pytest.param(15, 0.15, marks=pytest.mark.slow)])
def test_picard_needs_fewer_calls_and_evaluations_than_free(draft_length: int, saved: float) -> None:
    free = stats(250, 16, draft_length, **FREE)
    picard = stats(250, 16, draft_length, **PICARD)
    assert picard.calls <= (1 - saved) * free.calls
    assert picard.evaluations < free.evaluations
    if draft_length == 15:
        assert picard.steps / picard.calls >= 7.5
        assert picard.evaluations <= 2.0 * picard.steps


@pytest.mark.slow
def test_the_gain_saves_calls_of_the_free_drafter() -> None:
    plain, corrected = stats(250, 16, 7, **FREE), stats(250, 16, 7, **FREE, gain="kalman")
    assert corrected.calls <= 0.95 * plain.calls


@pytest.mark.slow
@pytest.mark.parametrize(("draft_length", "least"), [(31, 15), (63, 22)])
def test_long_windows_at_1000_steps(draft_length: int, least: float) -> None:
    picard = stats(1000, 4, draft_length, **PICARD)
    assert picard.steps / picard.calls >= least
    assert picard.evaluations <= 2.2 * picard.steps


class Tiled:
    """Sixteen images of the built-in target as the channels of one state."""

    shape = (16, 28, 28)

    def __init__(self, steps: int) -> None:
        self._target = clothes(steps)
        self.transitions = self._target.transitions
        gain: Gain = self._target.gain
        self.gain = dataclasses.replace(gain, shrinkage=gain.shrinkage.expand(-1, 16, -1, -1))

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        labels = {"label": conditioning["label"].flatten()}
        return self._target.denoise(state.view(-1, 1, 28, 28), step.repeat_interleave(16), labels).view_as(state)

    def condition(self, asked: Sequence[Request]) -> dict[str, Tensor]:
        return {"label": (torch.arange(16) % 10).expand(len(asked), 16)}

    def decode(self, latents: Tensor) -> Tensor:
        return self._target.decode(latents.view(-1, 1, 28, 28)).view(len(latents), 16 * 28, 28, 1)


@pytest.mark.slow
def test_sixteen_images_as_one_state() -> None:
    target = Tiled(250)
    asked = [Request(str(i), i) for i in range(2)]
    free, corrected, picard = (
        Sampler(target, draft_length=15, lanes=2, **settings).sample(asked).stats
        for settings in (FREE, {**FREE, "gain": "kalman"}, PICARD)
    )
    assert free.calls >= 1.6 * picard.calls
    assert picard.calls < corrected.calls < free.calls


@pytest.mark.slow
def test_a_seed_s_picture_is_nearly_the_sequential_sampler_s() -> None:
    """Median RMSE over 256 images, against that between different seeds of one class."""

    def pictures(first: int, **settings: Any) -> np.ndarray[Any, Any]:
        sampler = Sampler(clothes(250), lanes=16, **settings)
        made = sampler.sample(requests(256, first)).samples
        return np.stack([sample.image for sample in made]).astype(np.float64)  # type: ignore[arg-type]

    sequential, picard = pictures(0, verification="none"), pictures(0, **PICARD)
    other = np.roll(sequential, 10, axis=0)  # the next image of the same class

    def rmse(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
        return float(np.median(np.sqrt(((a - b) ** 2).mean((1, 2, 3)))))

    assert rmse(sequential, picard) <= rmse(sequential, other) / 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "draft_length"), [({"verification": "block"}, 7), (PICARD, 7), (PICARD, 15), (PICARD, 31)]
)
def test_one_image_by_the_clock(settings: dict[str, Any], draft_length: int) -> None:
    """At least 0.9 of what calls and the time of a batch allow, medians of interleaved turns in one run."""
    target = clocked(clothes(1000))
    samplers = [Sampler(target, lanes=1, verification="none")]
    samplers.append(Sampler(target, lanes=1, draft_length=draft_length, **settings))
    turns = [[timed_image(target, sampler, request)[:2] for sampler in samplers] for request in requests(3)]
    (whole, network), (fast_whole, fast_network) = np.median(np.array(turns), axis=0)
    assert whole / fast_whole >= 0.9 * network / fast_network
