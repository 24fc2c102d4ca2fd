"""What happened along the trajectories of a sampler: how far off drafts were at each step, and how many were kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdiff.drafters import Drafter, Window
from specdiff.sampler import Sampler
from specdiff.targets.base import Target
from specdiff.verification import Verification


class Trace:
    """Sums by step, float64 [N] on the sampler's device.

    Attributes:
        rounds: rounds of single lanes that started at the step and drafted.
        advanced: steps that those rounds advanced, the one after the drafts included.
        drafts: drafts of the step.
        delta: of those drafts, the sum of δ.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.rounds, self.advanced, self.drafts, self.delta = torch.zeros(4, steps, dtype=torch.float64, device=device)
        self.step = torch.zeros((0, 0), dtype=torch.int64, device=device)  # of the round in progress

    def note(self, length: Tensor, delta: Tensor, kept: Tensor) -> None:
        """Add a round of all lanes: length and kept int64 [lanes], delta float64 [lanes, γ]."""
        drafted = torch.arange(delta.shape[1], device=delta.device) < length[:, None]
        step = self.step[:, : delta.shape[1]]
        self.drafts.index_add_(0, step.flatten(), drafted.flatten().double())
        self.delta.index_add_(0, step.flatten(), (delta * drafted).flatten())
        self.rounds.index_add_(0, step[:, 0], (length > 0).double())
        self.advanced.index_add_(0, step[:, 0], ((kept + 1) * (length > 0)).double())

    def binned(self, bins: int) -> dict[str, list[float | None]]:
        """The trajectory in equal parts: where each is (0 … 1), its block efficiency and mean δ, None where none."""
        steps = len(self.rounds)
        part = torch.arange(steps, device=self.rounds.device) * bins // steps

        def ratio(above: Tensor, below: Tensor) -> list[float | None]:
            sums = torch.zeros(2, bins, dtype=torch.float64, device=above.device)
            sums.index_add_(1, part, torch.stack([above, below]))
            return [a / b if b else None for a, b in sums.T.tolist()]

        return {
            "at": [(i + 0.5) / bins for i in range(bins)],
            "block_efficiency": ratio(self.advanced, self.rounds),
            "delta": ratio(self.delta, self.drafts),
        }


def traced(target: Target, **settings: Any) -> tuple[Sampler, Trace]:
    """A sampler of these settings, and what it tells of its rounds as it goes; it draws the same images."""
    plain = Sampler(target, **settings)
    trace = Trace(len(target.transitions), plain.device)
    make, rule = plain.drafter, plain.verification
    if make is None or rule is None:
        return plain, trace
    watched: dict[str, Any] = settings | {
        "drafter": lambda lanes, shape, device: _WatchedDrafter(make(lanes, shape, device), trace),
        "verification": _WatchedRule(rule, trace),
    }
    return Sampler(target, **watched), trace


class _WatchedDrafter:
    def __init__(self, drafter: Drafter, trace: Trace) -> None:
        self._drafter, self._trace = drafter, trace
        self.opens = drafter.opens
        self.observe = drafter.observe

    def draft(self, state: Tensor, window: Window) -> Tensor:
        self._trace.step = window.step
        return self._drafter.draft(state, window)


class _WatchedRule:
    def __init__(self, rule: Verification, trace: Trace) -> None:
        self._rule, self._trace = rule, trace
        self.fresh_noise = rule.fresh_noise
        self.correct = rule.correct

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        tau, log_alpha = self._rule.accept(length, log_ratio, delta, u)
        self._trace.note(length, delta, tau)
        return tau, log_alpha
