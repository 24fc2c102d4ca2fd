"""Speculative samples of every family have the sequential sampler's law, in the smallest variant of each.

By the innovation test on the committed paths, at fixed seeds; LEVEL is the false-alarm rate of each configuration, and
with fewer than 20 of them the family-wise rate is under 1e-3. A biased rule must be rejected at POWER on each family.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelines import conditional, ddpm, latent_dit, ldm
from torch import Tensor

from specdiff import Request, Sampler, Target, load_target
from specdiff.targets import EDM
from specdiff.testing import innovation_p_value, innovations
from specdiff.verification import Token

LEVEL = 5e-5
POWER = 1e-9
COUNT = 4000
STEPS = 8


def edm(folder: Path) -> EDM:
    """Of the posterior mean of two points, in two dimensions."""

    def denoiser(y: Tensor, sigma: Tensor) -> Tensor:
        means = torch.tensor([[0.9, -0.5], [-0.4, 0.8]])
        distance = (y[:, None] - means).square().sum(2) / (2 * (sigma**2 + 0.1)[:, None])
        return torch.softmax(-distance, 1) @ means

    return EDM(denoiser, (2,), steps=STEPS, churn=1.0, sigma_max=20.0)


def unguided(i: int) -> Request:
    return Request(str(i), i)


def labelled(i: int) -> Request:
    return Request(str(i), i, label=i % 4)


def guided(i: int) -> Request:
    """A third each with guidance, without, and without a label."""
    return Request(str(i), i, label=None if i % 3 == 2 else i % 2, guidance_scale=3.0 if i % 3 == 0 else None)


FAMILIES: dict[str, tuple[Callable[[Path], Target], Callable[[int], Request]]] = {
    "ddpm": (lambda folder: load_target(ddpm(folder), steps=STEPS), unguided),
    "class-conditional": (lambda folder: load_target(conditional(folder), steps=STEPS), labelled),
    "guided": (lambda folder: load_target(conditional(folder), steps=STEPS, null_class=True), guided),
    "dit": (lambda folder: load_target(latent_dit(folder), steps=STEPS, variance="fixed_small"), guided),
    "ldm": (lambda folder: load_target(ldm(folder), steps=STEPS, eta=0.8), unguided),
    "edm": (edm, unguided),
}


def p_value(family: str, folder: Path, **settings: Any) -> float:
    make, ask = FAMILIES[family]
    target = make(folder)
    requests = [ask(i) for i in range(COUNT)]
    sampler = Sampler(target, lanes=COUNT, batch_rows=4096, record_steps=range(STEPS + 1), **settings)
    run = sampler.start()  # whose samples are left undecoded
    run.submit(requests)
    samples = []
    while run.busy:
        samples += run.round()
    acceptance = run.stats.acceptance
    assert acceptance is not None
    assert 0.02 < acceptance < 0.98  # there are drafts of either fate
    order = sorted(samples, key=lambda sample: sample.seed)
    return innovation_p_value(innovations(target, order, requests))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_block_with_the_free_drafter(tmp_path: Path, family: str) -> None:
    assert p_value(family, tmp_path, draft_length=3) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_reflection_with_picard(tmp_path: Path, family: str) -> None:
    assert p_value(family, tmp_path, draft_length=3, verification="reflection", drafter="picard") > LEVEL


class _Lenient(Token):
    """Keeps what token verification would not, in one case of ten."""

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return super().accept(length, log_ratio, delta, (u - 0.1).clamp(min=1e-12))


@pytest.mark.parametrize("family", ["ddpm", "guided", "edm"])
def test_a_biased_rule_is_rejected(tmp_path: Path, family: str) -> None:
    assert p_value(family, tmp_path, draft_length=3, verification=_Lenient("residual")) < POWER
