"""Block verification of tokens, written out, against the figures of Sun et al. (arXiv 2403.10444); and block against
token verification on the same drafts."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import Tensor

import specdiff.verification
from specdiff.verification import Block, Token

Law = dict[str, Fraction]
TARGET: Law = {"a": Fraction(1, 3), "b": Fraction(2, 3)}
DRAFT: Law = {"a": Fraction(2, 3), "b": Fraction(1, 3)}


def kept_by_token(ratios: list[Fraction], mass: Callable[[Fraction], Fraction]) -> list[Fraction]:
    """P(τ = 0), …, P(τ = γ) for one draft, left to right."""
    reached, law = Fraction(1), []
    for ratio in ratios:
        keep = min(Fraction(1), ratio)
        law.append(reached * (1 - keep))
        reached *= keep
    return [*law, reached]


def kept_by_block(ratios: list[Fraction], mass: Callable[[Fraction], Fraction]) -> list[Fraction]:
    """The same under block verification; mass(p) is Σ_x max(0, p M_b(x) − M_s(x))."""
    p = [Fraction(1)]
    for ratio in ratios:
        p.append(min(Fraction(1), p[-1] * ratio))
    h = [Fraction(1)]
    for p_i in p[1:-1]:
        total = mass(p_i) + 1 - p_i
        h.append(mass(p_i) / total if total else Fraction(1))
    h.append(p[-1])
    law, left = [Fraction(0)] * len(h), Fraction(1)
    for i in reversed(range(len(h))):  # the largest that passes
        law[i] = left * h[i]
        left -= law[i]
    return law


def residual_mass(p: Fraction) -> Fraction:
    return sum((max(Fraction(0), p * TARGET[x] - DRAFT[x]) for x in TARGET), Fraction(0))


def expected_kept(rule: Callable[..., list[Fraction]], drafts: int) -> Fraction:
    """E τ over drafts and uniforms, exactly."""
    total = Fraction(0)
    for block in product(DRAFT, repeat=drafts):
        chance = Fraction(1)
        for x in block:
            chance *= DRAFT[x]
        law = rule([TARGET[x] / DRAFT[x] for x in block], residual_mass)
        total += chance * sum(i * each for i, each in enumerate(law))
    return total


def test_the_papers_toy_pair() -> None:
    assert expected_kept(kept_by_token, 2) == Fraction(10, 9)
    assert expected_kept(kept_by_block, 2) == Fraction(11, 9)


def test_our_block_is_that_one_with_another_residual_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recursion as it runs here, fed the toy pair's ratios and its residual mass in place of the Gaussians'."""

    def mass(log_alpha: Tensor, delta: Tensor) -> Tensor:
        return sum((log_alpha.exp() * float(TARGET[x]) - float(DRAFT[x])).clamp(min=0) for x in TARGET).log()  # type: ignore

    monkeypatch.setattr(specdiff.verification, "log_residual_mass", mass)
    for drafts in (2, 5):
        lanes = 100_000
        generator = torch.Generator().manual_seed(drafts)
        is_b = torch.rand(lanes, drafts, generator=generator) < 1 / 3
        log_ratio = torch.where(is_b, 2.0, 0.5).double().log()
        u = torch.rand(lanes, drafts, generator=generator, dtype=torch.float64)
        length = torch.full((lanes,), drafts)
        for rule, oracle in ((Token(), kept_by_token), (Block(), kept_by_block)):
            tau = rule.accept(length, log_ratio, torch.ones_like(u), u)[0].double()
            error = float(tau.std()) / lanes**0.5
            assert float(tau.mean()) == pytest.approx(float(expected_kept(oracle, drafts)), abs=5 * error)


@pytest.mark.parametrize("drafts", [1, 2, 7, 12])
@pytest.mark.parametrize("distance", [0.05, 0.3, 0.8, 2.0, "varies"])
def test_block_keeps_at_least_as_many_as_token_on_the_same_drafts(drafts: int, distance: float | str) -> None:
    """In expectation, Σ E p_i against Σ E Π min(1, q/p): the first is at least the second, draft by draft."""
    lanes = 20_000
    generator = torch.Generator().manual_seed(drafts)
    z, u = torch.randn(2, lanes, drafts, generator=generator, dtype=torch.float64)
    u = torch.special.ndtr(u)
    if distance == "varies":  # δ_{i+1} may depend on the drafts before it
        previous = torch.cat([torch.zeros(lanes, 1), z[:, :-1]], dim=1)
        delta = 0.15 + 1.7 * torch.sigmoid(3 * previous)
    else:
        delta = torch.full_like(z, float(distance))
    log_ratio = -z * delta - delta**2 / 2
    length = torch.full((lanes,), drafts)
    by_token = Token().accept(length, log_ratio, delta, u)[0].double()
    by_block = Block().accept(length, log_ratio, delta, u)[0].double()

    walk = log_ratio.cumsum(1)
    p = (walk - walk.cummax(1).values.clamp(min=0)).exp()  # P(τ ≥ i | the drafts so far)
    token = log_ratio.clamp(max=0).cumsum(1).exp()
    assert (p >= token * (1 - 1e-12)).all()
    for found, expected in ((by_token, token.sum(1)), (by_block, p.sum(1))):
        difference = found - expected
        assert abs(float(difference.mean())) < 5 * float(difference.std()) / lanes**0.5
    if drafts == 1:
        assert torch.equal(by_token, by_block)
    elif distance != 0.05:
        assert by_block.mean() > by_token.mean()
