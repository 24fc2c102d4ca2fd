"""The round as the device sees it: what it holds, and its compiled form."""

from __future__ import annotations

import gc
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from toy import mixture

from specdiff import Request, Sampler
from specdiff.testing import innovation_p_value, innovations

LANES, DIMENSIONS = 4, 1000


class Watched:
    """A target that counts, whenever its network is called, the states that others hold."""

    def __init__(self, steps: int) -> None:
        self._target = mixture(steps, DIMENSIONS, 2)
        self.most = 0.0
        gc.collect()  # what earlier tests left would go in the middle of this one
        self.before = self.held(())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def held(self, own: tuple[Tensor, ...]) -> float:
        """States a lane in all tensors alive that are as large as the lanes' states, but for ``own``."""
        storages = {}
        for thing in gc.get_objects():
            if type(thing) is Tensor and thing.dtype == torch.float32:
                storage = thing.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        for tensor in own:
            storages.pop(tensor.untyped_storage().data_ptr(), None)
        state = 4 * DIMENSIONS
        return sum(each for each in storages.values() if each >= LANES * state) / (LANES * state)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        self.most = max(self.most, self.held((state,)) - self.before)
        return self._target.denoise(state, step, conditioning)


@pytest.mark.parametrize("draft_length", [1, 5, 12])
def test_few_states_are_held_beside_the_networks_own(draft_length: int) -> None:
    """At most γ + 3 a lane while the network runs, its input apart."""
    target = Watched(40)
    sampler = Sampler(target, lanes=LANES, draft_length=draft_length)
    samples = sampler.sample([Request(str(i), i) for i in range(2 * LANES)]).samples
    assert all(sample.error is None for sample in samples)
    assert draft_length < target.most <= draft_length + 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile wants a C++ compiler")
@pytest.mark.parametrize(
    "settings",
    [
        {"verification": "block", "drafter": "free"},
        {"verification": "token", "drafter": "frozen", "held": "eps"},
        {"verification": "reflection", "drafter": "picard"},
    ],
)
def test_the_compiled_round_is_the_same_round(settings: dict[str, Any]) -> None:
    """Exact by the innovation test at 1e-4, and from the same numbers as the plain one."""
    steps, count = 8, 4000
    requests = [Request(str(i), i) for i in range(count)]
    target = mixture(steps, 2, 3)
    plain = Sampler(target, lanes=count, draft_length=3, **settings).sample(requests).samples
    target.compile = True  # type: ignore[attr-defined]
    sampler = Sampler(target, lanes=count, draft_length=3, record_steps=range(steps + 1), **settings)
    compiled = sampler.sample(requests).samples
    assert innovation_p_value(innovations(target, compiled, requests)) > 1e-4
    same = [torch.allclose(a.latent, b.latent, atol=1e-3) for a, b in zip(plain, compiled, strict=True)]  # type: ignore[arg-type]
    assert sum(same) > 0.99 * count  # a comparison may fall the other way by a rounding
