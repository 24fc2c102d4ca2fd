"""How much speculation helps, by steps, dimensions and churn: ``python -m specdiff.benefit [TARGET …]``."""

import json
import sys
from typing import Any

import torch

from specdiff.environment import environment
from specdiff.requests import Request
from specdiff.sampler import Sampler
from specdiff.targets import GaussianMixture, inspect_target, load_target
from specdiff.targets.base import Target
from specdiff.transitions import Transitions

IMAGES, DRAFT_LENGTH = 16, 7


def mixture(dimensions: int, transitions: Transitions) -> GaussianMixture:
    """Eight modes of standard deviation 0.5, as far apart in each dimension."""
    means = 0.5 * torch.randn(8, dimensions, generator=torch.Generator().manual_seed(0))
    return GaussianMixture(means, torch.full((8,), 0.5), torch.ones(8), transitions)


def ancestral(steps: int) -> Transitions:
    """DDPM's steps on a cosine schedule."""
    alpha_bar = torch.cos(torch.pi / 2 * (1 - torch.arange(steps, dtype=torch.float64) / steps)) ** 2
    alpha_bar[0] = 0
    return Transitions.ddim(alpha_bar)


def figures(name: str, target: Target, classes: int | None = None) -> dict[str, Any]:
    """What block verification with the Free Drafter needed for a few images; δ is in quarters of the trajectory."""
    requests = [Request(str(i), i, label=i % classes if classes else None) for i in range(IMAGES)]
    stats = Sampler(target, draft_length=DRAFT_LENGTH, lanes=IMAGES).sample(requests).stats
    parts = len(stats.drafts_by_part)
    quarter = [range(parts * i // 4, parts * (i + 1) // 4) for i in range(4)]
    drafts = [sum(stats.drafts_by_part[i] for i in each) for each in quarter]
    delta = [sum(stats.delta_by_part[i] for i in each) for each in quarter]
    return {
        "target": name,
        "steps": len(target.transitions),
        "acceptance": stats.acceptance,
        "sequential_speedup": stats.sequential_speedup,
        "evaluations_per_step": stats.evaluations / stats.steps,
        "delta": [a / b if b else None for a, b in zip(delta, drafts, strict=True)],
    }


def main(names: list[str]) -> None:
    """Print the figures as JSON; further targets by name."""
    torch.set_num_threads(1)
    rows = [
        figures(f"mixture, {dimensions} dimensions", mixture(dimensions, ancestral(steps)))
        for dimensions in (2, 16, 128, 1024, 8192)
        for steps in (10, 50, 250)
    ]
    t = torch.linspace(1, 0, 101, dtype=torch.float64)
    rows += [figures(f"mixture, 128, churn {eps}", mixture(128, Transitions.churn(t, eps))) for eps in (0.1, 0.3, 1.0)]
    for name in names:
        classes = inspect_target(name).num_classes
        rows += [figures(name, load_target(name, steps=steps), classes) for steps in (10, 50, 250, 1000)]
    print(
        json.dumps(
            {"images": IMAGES, "draft_length": DRAFT_LENGTH, "rows": rows, **environment(torch.device("cpu"))}, indent=1
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
