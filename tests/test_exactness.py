"""The output's law is exactly the sequential sampler's.

Three tests on the committed paths, with fixed seeds. The innovation test looks at every step; a Kolmogorov–Smirnov
test looks at random projections of (an intermediate state, the final state), and a random-Fourier MMD at the same
joint, both against an independent run of the sequential sampler. Each configuration has a false-alarm rate of LEVEL
over its three tests (Bonferroni within each); over fewer than 100 configurations the family-wise rate is under 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
import torch
from laws import COUNT, LEVEL, POWER, draw, joint, ks_p_value, mmd_p_value
from torch import Tensor
from toy import PROCESSES, mixture

import specdiff.sampler
from specdiff import Request, Sampler
from specdiff.noise import normals, uniforms
from specdiff.targets import GaussianMixture
from specdiff.testing import ToyChain, check_exactness, innovation_p_value, innovations, offset
from specdiff.verification import Block

TARGETS: dict[str, Callable[[], Any]] = {
    "toy": lambda: ToyChain(12),
    "toy-short": lambda: ToyChain(4),
    "mixture-2d": lambda: mixture(16, 2, 8),
    "mixture-2d-short": lambda: mixture(5, 2, 8),
    "mixture-8d": lambda: mixture(16, 8, 8),
    "mixture-64d": lambda: mixture(10, 64, 8),
}


@cache
def reference(name: str) -> Tensor:
    target = TARGETS[name]()
    samples, _ = draw(target, 10_000_000, COUNT, verification="none")
    return joint(samples, len(target.transitions) // 2)


def p_values(name: str, count: int = COUNT, **settings: Any) -> dict[str, float]:
    target = TARGETS[name]()
    samples, requests = draw(target, 0, count, **settings)
    found = joint(samples, len(target.transitions) // 2)
    return {
        "innovation": innovation_p_value(innovations(target, samples, requests)),
        "ks": ks_p_value(found, reference(name)),
        "mmd": mmd_p_value(found, reference(name)),
    }


def assert_exact(name: str, **settings: Any) -> None:
    found = p_values(name, **settings)
    assert min(found.values()) > LEVEL / 3, found


@pytest.mark.parametrize("draft_length", [1, 2, 4, 7, 12])
@pytest.mark.parametrize("name", ["mixture-2d", "mixture-2d-short", "mixture-8d", "mixture-64d"])
def test_block_with_the_free_drafter(name: str, draft_length: int) -> None:
    assert_exact(name, draft_length=draft_length)


@pytest.mark.parametrize("orthogonal", ["kept", "fresh"])
@pytest.mark.parametrize(
    ("name", "delta", "draft_length"),
    [("toy", 0.8, 3), ("toy", 0.5, 6), ("toy", 1.5, 3), ("toy", 0.05, 7), ("toy-short", 0.5, 7), ("toy", 4.0, 2)],
)
def test_block_with_a_drafter_that_is_off(name: str, delta: float, draft_length: int, orthogonal: str) -> None:
    assert_exact(name, draft_length=draft_length, drafter=offset(delta), orthogonal=orthogonal)


def test_fresh_orthogonal_noise_with_the_free_drafter() -> None:
    assert_exact("mixture-8d", draft_length=5, orthogonal="fresh")


def test_sequential() -> None:
    """The baseline itself, by the innovation test."""
    for name in ("toy", "mixture-8d"):
        target = TARGETS[name]()
        samples, requests = draw(target, 0, COUNT, verification="none")
        assert innovation_p_value(innovations(target, samples, requests)) > LEVEL


def test_lanes_refilled_in_mid_flight() -> None:
    """Images that start while their neighbours are half done, in chunks that cut across lanes."""
    target = TARGETS["mixture-2d"]()
    sampler = Sampler(target, lanes=1500, batch_rows=1024, draft_length=5, record_steps=range(17))
    requests = [Request(str(i), i) for i in range(COUNT)]
    samples = sampler.sample(requests).samples
    assert innovation_p_value(innovations(target, samples, requests)) > LEVEL
    assert ks_p_value(joint(samples, 8), reference("mixture-2d")) > LEVEL


AXES: dict[str, list[Any]] = {
    "rule": [("token", "residual"), ("token", "transport"), ("reflection", "residual"),
             ("block", "residual"), ("block", "transport")],
    "drafter": ["free", "frozen"],
    "held": ["x0", "eps", "v"],
    "reuse": ["rejected", "accepted"],
    "orthogonal": ["kept", "fresh"],
    "process": list(PROCESSES),
    "size": [(16, 4), (5, 7), (12, 1)],
}  # fmt: skip


def covering(axes: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Greedy: rows until every pair of values of two axes stands in one."""
    rows = list(product(*axes.values()))
    columns = list(combinations(range(len(axes)), 2))
    missing = {(a, b, row[a], row[b]) for row in rows for a, b in columns}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: sum((a, b, row[a], row[b]) in missing for a, b in columns))
        missing -= {(a, b, best[a], best[b]) for a, b in columns}
        chosen.append(best)
    return chosen


def configuration(row: tuple[Any, ...]) -> tuple[GaussianMixture, dict[str, Any]]:
    values = dict(zip(AXES, row, strict=True))
    (verification, correction), (steps, draft_length) = values.pop("rule"), values.pop("size")
    target = mixture(steps, 2, 4, values.pop("process"))
    return target, {"verification": verification, "correction": correction, "draft_length": draft_length, **values}


@pytest.mark.parametrize("row", covering(AXES), ids=lambda row: "-".join(map(str, row)))
def test_every_pair_of_settings(row: tuple[Any, ...]) -> None:
    target, settings = configuration(row)
    samples, requests = draw(target, 0, COUNT, **settings)
    assert innovation_p_value(innovations(target, samples, requests)) > LEVEL


@pytest.mark.slow
def test_all_settings() -> None:
    """The full product at one size, fewer images each; the family-wise rate over its rows is 1e-3."""
    axes = {**AXES, "size": [(10, 4)]}
    # a frozen draft is made where it is used: which evaluation is reused makes no difference
    rows = [row for row in product(*axes.values()) if row[1] != "frozen" or row[3] == "rejected"]
    for row in rows:
        target, settings = configuration(row)
        samples, requests = draw(target, 0, 3000, **settings)
        assert innovation_p_value(innovations(target, samples, requests)) > 1e-3 / len(rows), row


class FirstFailure(Block):
    """Biased: stops at the first U_i > h_i, as token verification would, instead of taking the largest U_i ≤ h_i."""

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.zeros_like(length)
        log_p = torch.zeros(len(length), dtype=torch.float64)
        alive = torch.ones_like(length, dtype=torch.bool)
        for i in range(log_ratio.shape[1]):
            # a block with all other uniforms at 1 keeps draft i + 1 exactly if U_{i+1} ≤ h_{i+1}
            only = torch.ones_like(u)
            only[:, i] = u[:, i]
            tau, log_alpha = super().accept(length, log_ratio, delta, only)
            alive &= tau == i + 1
            kept, log_p = torch.where(alive, tau, kept), torch.where(alive, log_alpha, log_p)
        return kept, log_p


class PlainResidual(Block):
    """Biased: draws from the residual of α = 1 whatever p_τ is."""

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        tau, log_alpha = super().accept(length, log_ratio, delta, u)
        return tau, torch.zeros_like(log_alpha)


class OldNoise(Block):
    """Biased: steps drafted again see the same z, U and V that an earlier block has looked at."""

    fresh_noise = False


class ReflectedBlock(Block):
    """Biased: mirrors the rejected draft though α < 1 (Proposition 3.2 of the paper says why it cannot be right)."""

    def correct(self, log_alpha: Tensor, delta: Tensor, s: Tensor, v: Tensor) -> Tensor:
        return delta - s


def assert_seen(name: str, **settings: Any) -> None:
    found = p_values(name, count=COUNT, **settings)
    assert found["innovation"] < POWER, found


@pytest.mark.parametrize("verification", ["token", "reflection", "block"])
def test_the_public_checker_passes_what_is_exact(verification: str) -> None:
    assert check_exactness(verification, seed=1_000_000).passed


@pytest.mark.parametrize("verification", [FirstFailure(), PlainResidual(), OldNoise(), ReflectedBlock()])
def test_the_public_checker_rejects_what_is_biased(verification: Block) -> None:
    assert not check_exactness(verification).passed


def test_sees_a_block_that_stops_at_the_first_failure() -> None:
    assert_seen("toy", drafter=offset(0.8), draft_length=3, verification=FirstFailure())


def test_sees_the_residual_of_alpha_one() -> None:
    assert_seen("toy", drafter=offset(1.5), draft_length=3, verification=PlainResidual())


def test_sees_reflection_under_block() -> None:
    assert_seen("toy", drafter=offset(0.5), draft_length=6, verification=ReflectedBlock())


def test_sees_one_uniform_used_twice_under_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(seed: Tensor, step: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        return (uniforms(seed, step, stream)[0],) * 2

    monkeypatch.setattr(specdiff.sampler, "uniforms", same)
    assert_seen("toy", drafter=offset(0.8), draft_length=3, verification="token")


def test_sees_old_random_numbers() -> None:
    assert_seen("toy", drafter=offset(0.5), draft_length=6, verification=OldNoise())


def test_sees_old_uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(seed: Tensor, step: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        return uniforms(seed, step, torch.zeros_like(stream))

    monkeypatch.setattr(specdiff.sampler, "uniforms", old)
    assert_seen("toy", drafter=offset(0.5), draft_length=6)


def test_sees_old_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(seed: Tensor, step: Tensor, stream: Tensor, *rest: Any) -> Tensor:
        return normals(seed, step, torch.zeros_like(stream), *rest)

    monkeypatch.setattr(specdiff.sampler, "normals", old)
    assert_seen("toy", drafter=offset(0.5), draft_length=6)


def test_ks_and_mmd_see_a_shifted_law() -> None:
    """Power of the two-sample tests: a drafter trusted without verification."""

    class Trusting(Block):
        def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            return length, torch.zeros(len(length), dtype=torch.float64)

    found = p_values("toy", drafter=offset(0.2), draft_length=3, verification=Trusting())
    assert max(found.values()) < POWER, found
