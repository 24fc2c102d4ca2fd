"""Counters of a sampler, and what is derived from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTS = 20  # of a trajectory, for counters along it


@dataclass
class Stats:
    """Sums over images and rounds; two of them add up with ``+``.

    Attributes:
        samples: images finished, failed ones not counted.
        failed: images that ended in an error.
        steps: steps of the finished images, N each.
        rounds, calls: rounds and sequential network calls of the finished images.
        evaluations: states of the finished images that the network saw.
        batched_calls: network calls made for all lanes together.
        padded_rows: rows of those calls that held no state of any image.
        guidance_rows: rows of those calls that held a state for the second time, without its condition.
        drafted_by_position: rounds in which a draft stood at position 1 … γ.
        accepted_by_position: rounds in which that draft was kept.
        rounds_by_part: rounds of single lanes that drafted, by the part of the trajectory that they began in
            (``parts_of``; the first is pure noise).
        advanced_by_part: steps that those rounds advanced, the one after the drafts included.
        drafts_by_part: drafts, by the part that they lie in; those where the network failed are left out.
        delta_by_part: the sum of δ over those drafts.
    """

    samples: int = 0
    failed: int = 0
    steps: int = 0
    rounds: int = 0
    calls: int = 0
    evaluations: int = 0
    batched_calls: int = 0
    padded_rows: int = 0
    guidance_rows: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    rounds_by_part: list[int] = field(default_factory=list)
    advanced_by_part: list[int] = field(default_factory=list)
    drafts_by_part: list[int] = field(default_factory=list)
    delta_by_part: list[float] = field(default_factory=list)

    @classmethod
    def zero(cls, draft_length: int, steps: int) -> Stats:
        """Nothing counted yet, for γ = ``draft_length`` (0 without drafts) and N = ``steps``."""
        parts = min(PARTS, steps) if draft_length else 0
        return cls(
            drafted_by_position=[0] * draft_length,
            accepted_by_position=[0] * draft_length,
            rounds_by_part=[0] * parts,
            advanced_by_part=[0] * parts,
            drafts_by_part=[0] * parts,
            delta_by_part=[0.0] * parts,
        )

    def note(
        self,
        part: NDArray[np.int64],
        length: NDArray[np.int64],
        kept: NDArray[np.int64],
        ahead: NDArray[np.int64],
        delta: NDArray[np.float64],
    ) -> None:
        """Count a round's drafts.

        Args:
            part: int64 [lanes, at least γ], the part of the trajectory of each draft's step.
            length: int64 [lanes], drafts of each lane.
            kept: int64 [lanes], τ.
            ahead: int64 [lanes], steps that each lane advanced.
            delta: float64 [lanes, γ], δ; what lies beyond a lane's own length does not count.
        """
        drafts = delta.shape[1]
        if not drafts:
            return
        position = np.arange(drafts)
        drafted = position < length[:, None]
        accepted = drafted & (position < kept[:, None])
        known = drafted & np.isfinite(delta)
        began, parts = length > 0, len(self.rounds_by_part)
        added = (
            (self.drafted_by_position, drafted.sum(0)),
            (self.accepted_by_position, accepted.sum(0)),
            (self.rounds_by_part, np.bincount(part[began, 0], minlength=parts)),
            (self.advanced_by_part, np.bincount(part[began, 0], ahead[began], minlength=parts).astype(int)),
            (self.drafts_by_part, np.bincount(part[:, :drafts][known], minlength=parts)),
            (self.delta_by_part, np.bincount(part[:, :drafts][known], delta[known], minlength=parts)),
        )
        for counter, more in added:
            for i, value in enumerate(more.tolist()):
                counter[i] += value

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{f.name: _add(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    @property
    def block_efficiency(self) -> float | None:
        """Mean steps a round advances, first and last rounds included; None before the first image."""
        return self.steps / self.rounds if self.rounds else None

    @property
    def sequential_speedup(self) -> float | None:
        """Σ N / Σ calls; None before the first image."""
        return self.steps / self.calls if self.calls else None

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that were kept; None before the first draft."""
        drafted = sum(self.drafted_by_position)
        return sum(self.accepted_by_position) / drafted if drafted else None

    @property
    def hardly_helped(self) -> bool:
        """Whether there were drafts, and they saved less than one call in six: each cost an evaluation."""
        return bool(self.acceptance is not None and self.calls and self.steps < 1.2 * self.calls)

    def along(self) -> dict[str, list[float | None]]:
        """The trajectory in equal parts: where each is (0 noise … 1 image), its block efficiency and mean δ, None where
        nothing was drafted."""
        parts = len(self.rounds_by_part)
        return {
            "at": [(i + 0.5) / parts for i in range(parts)],
            "block_efficiency": _ratios(self.advanced_by_part, self.rounds_by_part),
            "delta": _ratios(self.delta_by_part, self.drafts_by_part),
        }

    def to_dict(self) -> dict[str, Any]:
        """Counters and derived figures, ready for JSON."""
        return {
            **asdict(self),
            "block_efficiency": self.block_efficiency,
            "sequential_speedup": self.sequential_speedup,
            "acceptance": self.acceptance,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Stats:
        """The counters of ``to_dict``; what is derived is dropped."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def parts_of(steps: int) -> NDArray[np.int64]:
    """The part of the trajectory that each of N steps lies in, 0 … PARTS − 1 or N − 1, whichever is less: int64 [N]."""
    return np.arange(steps) * min(PARTS, steps) // steps


def _add(a: Any, b: Any) -> Any:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)] if isinstance(a, list) else a + b


def _ratios(above: list[float] | list[int], below: list[int]) -> list[float | None]:
    return [a / b if b else None for a, b in zip(above, below, strict=True)]
