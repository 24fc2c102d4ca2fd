import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import mixture

import specdiff
from specdiff import Request, Sampler, Stats
from specdiff.drafters import Window
from specdiff.noise import Purpose, normals
from specdiff.targets import GaussianMixture
from specdiff.testing import ToyChain


def requests(count: int) -> list[Request]:
    return [Request(key=f"k{i}", seed=i, label=i % 10) for i in range(count)]


def unlabelled(count: int, first: int = 0) -> list[Request]:
    return [Request(key=str(i), seed=i) for i in range(first, first + count)]


@pytest.fixture(scope="module")
def clothes() -> Any:
    return specdiff.load_target("fashion-mnist", steps=10)


def test_sequential_sampler_is_the_textbook_loop() -> None:
    """One image at a time: y ← a y + b x̂(y) + σ z, with z_n a function of (seed, n)."""
    target = mixture(9, 3, 4)
    table = target.transitions
    result = Sampler(target, verification="none", lanes=4, record_steps=range(10)).sample(unlabelled(10))
    for sample in result.samples:
        seed, zero = torch.tensor(sample.seed), torch.tensor(0)
        y = normals(seed, zero, zero, 3, Purpose.START)[None]
        for n in range(9):
            assert torch.equal(sample.states[n], y[0])
            prediction = target.denoise(y, torch.tensor([n]), {})
            z = normals(seed, torch.tensor(n), zero, 3)
            y = table.a[n].float() * y + table.b[n].float() * prediction + table.sigma[n].float() * z
        torch.testing.assert_close(sample.latent, y[0], rtol=1e-5, atol=1e-6)
        assert (sample.rounds, sample.calls, sample.evaluations) == (9, 9, 9)
    assert result.stats.block_efficiency == result.stats.sequential_speedup == 1


def test_block_with_a_perfect_drafter_takes_the_sequential_path() -> None:
    """When every draft is the target's own step, all are kept and the noise is (seed, n)'s: the same picture."""

    class Perfect:
        opens = False

        def __init__(self, target: Any) -> None:
            self._target = target

        def draft(self, state: Tensor, window: Window) -> Tensor:
            guesses = []
            for j in range(window.step.shape[1] - 1):
                guesses.append(self._target.denoise(state, window.step[:, j], {}))
                state = window.next(j, state, guesses[j])
            return torch.stack(guesses, dim=1)

        def observe(self, *what_the_network_said: Tensor) -> None:
            pass

    target = mixture(16, 2, 4)
    sequential = Sampler(target, verification="none", lanes=8).sample(unlabelled(8))
    block = Sampler(target, drafter=lambda *_: Perfect(target), draft_length=4, lanes=8).sample(unlabelled(8))
    for a, b in zip(sequential.samples, block.samples, strict=True):
        torch.testing.assert_close(a.latent, b.latent, rtol=1e-5, atol=1e-5)
    # 1, then 5 a round: 1 + 5 + 5 + 5
    assert {sample.rounds for sample in block.samples} == {4}
    # the last block is cut before the deterministic last step, which its bonus takes
    assert {sample.evaluations for sample in block.samples} == {16}
    assert block.stats.drafted_by_position == block.stats.accepted_by_position == [24, 24, 24, 24]


def test_case_1_bytes_do_not_depend_on_lanes_order_or_company(clothes: Any) -> None:
    """Seeds 0–7 at 1, 3 and 8 lanes with equal batch_rows, shuffled, and next to others."""
    made = {}
    for lanes, order in ((1, range(8)), (3, range(8)), (8, range(8)), (8, [5, 2, 7, 0, 1, 6, 3, 4]), (3, range(12))):
        sampler = Sampler(clothes, lanes=lanes, draft_length=4, batch_rows=16)
        asked = requests(12)
        for sample in sampler.stream([asked[i] for i in order]):
            if sample.seed < 8:
                assert sample.image is not None
                facts = (sample.image.tobytes(), sample.rounds, sample.calls, sample.evaluations)
                assert made.setdefault(sample.seed, facts) == facts
    assert len({facts[0] for facts in made.values()}) == 8


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_latents_of_a_mixture_do_not_depend_on_lanes(lanes: int) -> None:
    target = mixture(16, 5, 4)
    alone = Sampler(target, lanes=20, draft_length=3, batch_rows=32).sample(unlabelled(20))
    found = Sampler(target, lanes=lanes, draft_length=3, batch_rows=32).sample(unlabelled(20))
    for a, b in zip(alone.samples, found.samples, strict=True):
        assert torch.equal(a.latent, b.latent)  # type: ignore[arg-type]


class Faulty(GaussianMixture):
    """Answers NaN for labelled rows from some step on."""

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        return {"bad": torch.tensor([request.label is not None for request in requests])}

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        bad = conditioning["bad"] & (step >= 5)
        return torch.where(bad[:, None], torch.nan, super().denoise(state, step, conditioning))


@pytest.mark.parametrize("verification", ["none", "block"])
def test_case_7_nan_in_one_image_fails_that_image_alone(verification: str) -> None:
    plain = mixture(12, 2, 3)
    faulty = Faulty(plain._means, plain._variances.sqrt(), plain._weights, plain.transitions)
    asked = [dataclasses.replace(r, label=1 if i == 3 else None) for i, r in enumerate(unlabelled(8))]
    options: dict[str, Any] = {"verification": verification, "lanes": 4, "batch_rows": 16}
    found = Sampler(faulty, **options).sample(asked)
    healthy = Sampler(plain, **options).sample(unlabelled(8))
    for i, (a, b) in enumerate(zip(found.samples, healthy.samples, strict=True)):
        if i == 3:
            assert a.image is None
            assert a.latent is None
            assert "NaN or infinity" in str(a.error)
        else:
            assert a.error is None
            assert torch.equal(a.latent, b.latent)  # type: ignore[arg-type]
    assert (found.stats.samples, found.stats.failed) == (7, 1)


@pytest.mark.parametrize("settings", [{"verification": "block"}, {"verification": "token", "drafter": "picard"}])
def test_a_network_that_fails_at_a_dropped_draft_does_not_fail_the_image(settings: dict[str, Any]) -> None:
    """NaN far out, where drafts go now and then: an image fails if its own path goes there, and only then."""

    class FarOut(GaussianMixture):
        def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
            far = (state.abs() > 3).any(1, keepdim=True)
            return torch.where(far, torch.nan, super().denoise(state, step, conditioning))

    plain = mixture(16, 2, 4)
    target = FarOut(plain._means, plain._variances.sqrt(), plain._weights, plain.transitions)
    result = Sampler(target, lanes=2000, draft_length=5, record_steps=range(17), **settings).sample(unlabelled(2000))
    failed = {sample.key for sample in result.samples if sample.error}
    unharmed = Sampler(plain, lanes=2000, draft_length=5, record_steps=range(17), **settings).sample(unlabelled(2000))
    went_out = {s.key for s in unharmed.samples if max(float(s.states[n].abs().max()) for n in range(16)) > 3}
    assert failed
    assert len(failed - went_out) <= 2  # paths part where a reused evaluation was missing


def test_counters_add_up() -> None:
    target = mixture(16, 2, 4)
    result = Sampler(target, lanes=3, draft_length=5, batch_rows=7).sample(unlabelled(11))
    stats = result.stats
    assert stats.samples == 11
    assert stats.steps == 11 * 16
    assert stats.rounds == sum(sample.rounds for sample in result.samples)
    assert stats.evaluations == sum(sample.evaluations for sample in result.samples)
    assert stats.batched_calls * 7 == stats.evaluations + stats.padded_rows
    # every round advances by what it kept, and one more unless nothing follows
    assert stats.steps == stats.rounds + sum(stats.accepted_by_position)
    assert sorted(stats.drafted_by_position, reverse=True) == stats.drafted_by_position
    assert all(a <= d for a, d in zip(stats.accepted_by_position, stats.drafted_by_position, strict=True))
    assert stats.block_efficiency == stats.steps / stats.rounds


def test_stats_merge_and_survive_json() -> None:
    a = Stats(samples=1, steps=10, rounds=4, calls=4, accepted_by_position=[1, 2], drafted_by_position=[3, 3])
    b = Stats(samples=2, steps=20, rounds=6, calls=6, accepted_by_position=[1], drafted_by_position=[1])
    both = a + b
    assert both.accepted_by_position == [2, 2]
    assert both.sequential_speedup == 3
    assert Stats.from_dict(both.to_dict()) == both
    assert Stats().block_efficiency is None


def test_samples_come_in_request_order_and_stream_takes_any_iterable() -> None:
    target = mixture(16, 2, 4)
    sampler = Sampler(target, lanes=4, draft_length=3)
    asked = unlabelled(13)
    assert [s.key for s in sampler.sample(iter(asked)).samples] == [r.key for r in asked]
    taken: list[str] = []

    def source() -> Any:
        for request in asked:
            taken.append(request.key)
            yield request

    first = next(sampler.stream(source()))
    assert first.key in taken
    assert len(taken) == 4  # no more than there are lanes
    assert {s.key for s in sampler.stream(source())} == {r.key for r in asked}
    assert list(sampler.stream([])) == []
    assert sampler.sample([]).samples == []


def test_extra_is_carried_and_images_are_pixels(clothes: Any) -> None:
    request = Request(key="a", seed=2**63 - 1, label=None, extra={"row": 7})
    sample = Sampler(clothes, lanes=1).sample([request]).samples[0]
    assert sample.extra == {"row": 7}
    assert sample.image is not None
    assert sample.image.shape == (28, 28, 1)
    assert sample.image.dtype == np.uint8
    assert sample.latent is not None
    assert sample.latent.shape == (1, 28, 28)


def test_deterministic_chains_draft_nothing() -> None:
    """η = 0: no step has noise, so every step is the target's."""
    alpha_bar = mixture(12, 2, 3).transitions.alpha ** 2
    plain = mixture(12, 2, 3)
    target = GaussianMixture(
        plain._means, plain._variances.sqrt(), plain._weights, specdiff.Transitions.ddim(alpha_bar, eta=0)
    )
    result = Sampler(target, lanes=4).sample(unlabelled(6))
    assert {s.rounds for s in result.samples} == {12}
    assert result.stats.drafted_by_position == [0] * 7


def test_chain_that_ends_in_noise() -> None:
    """Without a deterministic last step the last block has no bonus."""
    target = ToyChain(6)
    sigma = torch.ones(6, dtype=torch.float64)
    target.transitions = dataclasses.replace(target.transitions, sigma=sigma)
    result = Sampler(target, lanes=4, draft_length=9, record_steps=range(7)).sample(unlabelled(50))
    for sample in result.samples:
        assert sample.latent is not None
        assert torch.equal(sample.states[6], sample.latent)
        assert sample.evaluations <= 1 + 5 * sample.rounds


def test_a_call_is_never_empty() -> None:
    """A Frozen round of one draft at the end of a chain without a bonus is its opening call alone."""

    class Watched(GaussianMixture):
        def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
            assert len(state) in (2, 4)
            return super().denoise(state, step, conditioning)

    plain = mixture(5, 2, 3, "ends-in-noise")
    target = Watched(plain._means, plain._variances.sqrt(), plain._weights, plain.transitions)
    result = Sampler(target, drafter="frozen", draft_length=1, lanes=2, batch_rows=4)
    sample = result.sample(unlabelled(1)).samples[0]
    # two steps a round, the first of them the opening call's own: 2 + 2 calls, and one for the last step
    assert (sample.rounds, sample.calls, sample.evaluations) == (3, 5, 5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"verification": "blok"}, "verification must be none"),
        ({"drafter": "fre"}, "drafter must be free"),
        ({"draft_length": 0}, "draft_length"),
        ({"lanes": 0}, "lanes"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"orthogonal": "old"}, "orthogonal"),
        ({"record_steps": [17]}, "record_steps"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Sampler(mixture(16, 2, 4), **options)


def test_bad_requests_are_refused(clothes: Any) -> None:
    for seed in (-1, 2**63, 1.5, True):
        with pytest.raises(ValueError, match="seed"):
            Request(key="a", seed=seed)  # type: ignore[arg-type]
    for label in (-1, 2.5, True, "3"):
        with pytest.raises(ValueError, match="label"):
            Request(key="a", seed=0, label=label)  # type: ignore[arg-type]
    assert type(Request(key="a", seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    sampler = Sampler(clothes, lanes=2)
    with pytest.raises(ValueError, match=r"'k'.*label 10"):
        sampler.sample([Request("k", 0, label=10)])
    with pytest.raises(ValueError, match="prompts"):
        sampler.sample([Request("k", 0, prompt="a coat")])
    with pytest.raises(ValueError, match="same key"):
        sampler.sample([Request("k", 0), Request("k", 1)])
    with pytest.raises(ValueError, match="empty lanes"):
        sampler.start().submit(requests(3))


def test_targets_by_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'fashion-mnist'"):
        specdiff.load_target("fashion-mnits")
    with pytest.raises(ValueError, match="step"):
        specdiff.load_target("fashion-mnist", step=3)
    with pytest.raises(ValueError, match="eta"):
        specdiff.inspect_target("fashion-mnist", eta=2)
    assert "fashion-mnist" in [info.name for info in specdiff.registered_targets()]
