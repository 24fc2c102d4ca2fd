"""Counters of a sampler, and what is derived from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any


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
        """Share of rounds with drafts that kept at least the first; None before the first such round."""
        drafted, accepted = self.drafted_by_position[:1], self.accepted_by_position[:1]
        return accepted[0] / drafted[0] if drafted and drafted[0] else None

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


def _add(a: Any, b: Any) -> Any:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)] if isinstance(a, list) else a + b
