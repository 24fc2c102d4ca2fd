"""A target under a clock: how long its network takes, on the CPU or on a GPU that the host runs ahead of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdiff.requests import Request
from specdiff.targets.base import Guided, Target

Network = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


class Clocked:
    """A target that adds up the time its network takes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.device = torch.device(getattr(target, "device", "cpu"))
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        return self._timed(self._target.denoise, state, step, conditioning)

    def _timed(self, network: Network, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        if self.device.type == "cuda":  # the host runs ahead of the device, whose own clock it must be
            ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            ends[0].record()
            answer = network(state, step, conditioning)
            ends[1].record()
            self._events.append(ends)
            return answer
        start = time.perf_counter()
        answer = network(state, step, conditioning)
        self._seconds += time.perf_counter() - start
        return answer

    def taken(self) -> float:
        """Seconds since this was last asked."""
        self.wait()
        seconds = self._seconds + sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        self._seconds, self._events = 0.0, []
        return seconds

    def wait(self) -> None:
        """Until the device has done all it was told to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _ClockedGuided(Clocked):
    """One whose guidance the sampler sees to; it must have these by itself to be taken for a ``Guided``."""

    _target: Guided

    def guided(self, requests: Sequence[Request]) -> list[bool]:
        return self._target.guided(requests)

    def output(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        return self._timed(self._target.output, state, step, conditioning)

    def unguided(self, conditioning: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._target.unguided(conditioning)

    def conclude(
        self, first: Tensor, second: Tensor, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]
    ) -> Tensor:
        return self._target.conclude(first, second, state, step, conditioning)


def clocked(target: Target) -> Clocked:
    """The target under a clock, with guidance where it has any."""
    return _ClockedGuided(target) if isinstance(target, Guided) else Clocked(target)
