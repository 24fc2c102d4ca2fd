"""Whether speculation pays for a target and settings, from a few images made in advance.

The pilot's random numbers belong to no image that can be asked for, so that a choice made by it is independent of all
of them: under either choice every image has exactly the law of the sequential sampler. And it is the same whenever the
settings are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdiff.requests import Request
from specdiff.sampler import Sampler
from specdiff.stats import Stats
from specdiff.targets.base import Target

IMAGES = 4


@dataclass(frozen=True)
class Pilot:
    """What the pilot found.

    Attributes:
        stats: counters of its images.
        verification: the rule it was made with, or ``none`` where that hardly helps.
    """

    stats: Stats
    verification: str


class _Apart(Request):
    """A request with a seed below 0, which no caller can name."""

    def __post_init__(self) -> None:
        pass


def pilot(target: Target, requests: Sequence[Request], *, verification: str = "block", **settings: Any) -> Pilot:
    """Make a few images, undecoded, and see how many drafts are kept.

    Args:
        target: what is sampled.
        requests: at least one, whose labels, prompts and guidance the images have; seeds are the pilot's own.
        verification: the rule to try.
        settings: further ones of :class:`specdiff.Sampler`; lanes and batch_rows are the pilot's own.

    Raises:
        ValueError: settings that are refused, or a request that the target cannot serve.
    """
    own = {"verification": verification, "lanes": IMAGES, "batch_rows": None}
    run = Sampler(target, **settings | own).start()
    asked = [requests[i % len(requests)] for i in range(IMAGES)]
    run.submit(
        [
            _Apart(str(i), -1 - i, each.label, each.prompt, each.negative_prompt, each.guidance_scale)
            for i, each in enumerate(asked)
        ]
    )
    while run.busy:
        run.round()
    helps = run.stats.acceptance is not None and run.stats.samples and not run.stats.hardly_helped
    return Pilot(run.stats, verification if helps else "none")
