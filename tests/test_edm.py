"""Denoisers in EDM's form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdiff import Request, Sampler
from specdiff.noise import Purpose, normals
from specdiff.targets import EDM


def seen_by(**settings: Any) -> tuple[EDM, list[tuple[Tensor, ...]]]:
    """A denoiser of grey pictures, and what it was called with."""
    calls: list[tuple[Tensor, ...]] = []

    def denoiser(y: Tensor, sigma: Tensor, *label: Tensor) -> Tensor:
        calls.append((y, sigma, *label))
        shrunk = y * (0.25 / (0.25 + sigma**2)).view(-1, 1, 1, 1)
        return shrunk + 0.2 * label[0].view(-1, 1, 1, 1) if label else shrunk

    return EDM(denoiser, (1, 3, 2), **settings), calls


def test_without_churn_it_is_edms_euler_sampler() -> None:
    """Euler's method for dx/dσ = (x − D) / σ on EDM's grid, from σ_max ξ (Karras et al., algorithm 1)."""
    target, calls = seen_by(steps=12, churn=0.0)
    (sample,) = Sampler(target, verification="none", lanes=1).sample([Request("a", 7)]).samples
    grid = (80 ** (1 / 7) + torch.arange(12).double() / 11 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    seed, zero = torch.tensor(7), torch.tensor(0)
    x = 80 * normals(seed, zero, zero, 6, Purpose.START).view(1, 1, 3, 2).double()
    for n, (sigma, following) in enumerate(zip(grid, [*grid[1:], torch.tensor(0.0)], strict=True)):
        torch.testing.assert_close(calls[n][0].double(), x, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(calls[n][1].double(), sigma[None], rtol=1e-5, atol=0)
        x = x + (following - sigma) * (x - x * 0.25 / (0.25 + sigma**2)) / sigma
    assert sample.latent is not None
    torch.testing.assert_close(sample.latent[None], x.float(), rtol=1e-3, atol=1e-4)
    assert sample.image is not None
    assert sample.image.shape == (3, 2, 1)


def test_labels_reach_the_denoiser() -> None:
    target, calls = seen_by(steps=4, num_classes=3)
    Sampler(target, lanes=2, draft_length=1, batch_rows=2).sample([Request("a", 0, label=2), Request("b", 1, label=0)])
    assert calls[0][2].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("settings", "request_settings", "reason"),
    [
        ({}, {"label": 1}, "has no classes"),
        ({}, {"prompt": "a"}, "neither prompt nor guidance"),
        ({}, {"guidance_scale": 2.0}, "neither prompt nor guidance"),
        ({"num_classes": 2}, {}, "needs a label of 0 … 1"),
        ({"num_classes": 2}, {"label": 2}, "needs a label of 0 … 1, not 2"),
    ],
)
def test_requests_it_cannot_serve(settings: dict[str, Any], request_settings: dict[str, Any], reason: str) -> None:
    target, _ = seen_by(**settings)
    with pytest.raises(ValueError, match=f"request 'k': .*{reason}"):
        target.condition([Request("k", 0, **request_settings)])
