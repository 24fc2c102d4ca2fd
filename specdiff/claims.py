"""The paper's claims (arXiv 2606.13426) as checks that run, each beside what is found here.

Its drafters are taken as it describes them: the Free Drafter holds the clean image that was predicted at the last
accepted draft, and the noise of a rejected draft is drawn anew. What is counted (steps a round, calls) depends on seeds
alone. What is timed is one image at one lane, the samplers in turns. A CPU is busy with a single image already, so
that there a call on γ + 1 states costs nearly that many calls on one, and calls saved are not time saved.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from specdiff.bench import Load, Quality, timed_image
from specdiff.clock import clocked
from specdiff.environment import environment
from specdiff.requests import Request
from specdiff.sampler import Result, Sampler
from specdiff.targets.base import Target
from specdiff.testing import check_exactness

PAPER: dict[str, Any] = {"drafter": "free", "held": "x0", "reuse": "accepted", "orthogonal": "fresh"}
SEQUENTIAL = {"verification": "none"}
LITTLE_NOISE = 0.2  # η
SHORT = 2  # a draft length at which block efficiency is near its ceiling
TURNS = 5
PERMUTATIONS = 200
CLOSE = 0.03  # a difference by the clock that means nothing


@dataclass(frozen=True)
class Claim:
    """A claim, the paper's figure, and ours.

    Attributes:
        holds: None where it cannot be told, nothing having judged it or the figures being too close.
        law: whether it is about what is drawn, where anything but yes is a fault of ours.
    """

    claim: str
    paper: str
    found: str
    holds: bool | None
    law: bool = False


@dataclass(frozen=True)
class Gain:
    """How many more steps a round block verification makes than token verification, on the same seeds.

    Attributes:
        value: ratio of the block efficiencies, less 1.
        error: its standard error over images (jackknife).
        efficiency: block efficiency under block verification.
    """

    value: float
    error: float
    efficiency: float

    def exceeds(self, other: Gain) -> bool | None:
        """Whether it is larger; None where two standard errors leave that open."""
        difference = self.value - other.value
        return None if abs(difference) < 2 * math.hypot(self.error, other.error) else difference > 0

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} ± {100 * self.error:.1f} % at {self.efficiency:.2f} steps a round"


class Checks:
    """What the claims are checked on: the target at three lengths, N, N/4 and N/10."""

    def __init__(
        self,
        load: Load,
        requests: Sequence[Request],
        *,
        steps: int,
        draft_length: int,
        images: int,
        paths: int = 10_000,
        quality: Quality | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Nothing is sampled yet.

        Args:
            load: makes the target; it must take ``eta``.
            requests: at least twice ``images``.
            steps: N, at least 20.
            draft_length: γ, more than 2.
            images: counted at N/10 steps; a quarter at N/4, and a sixth at N.
            paths: of the toy chain, for the test of the law.
            quality: judges images; without it their quality goes unjudged.
            say: is told what is being done.

        Raises:
            ValueError: a number is too small.
        """
        if steps < 20 or draft_length <= SHORT or images < 12 or len(requests) < 2 * images:
            raise ValueError(
                f"claims need 20 steps, a draft length of {SHORT + 1}, 12 images and twice as many rows at least; not "
                f"{steps}, {draft_length}, {images} and {len(requests)}"
            )
        self._load, self._requests, self._quality, self._say = load, requests, quality, say
        self._long, self._middle, self._brief = steps, steps // 4, steps // 10
        self._draft_length, self._paths = draft_length, paths
        self._images = {self._long: images // 6, self._middle: images // 4, self._brief: images}
        self._results: dict[tuple[Any, ...], Result] = {}

    def run(self) -> dict[str, Any]:
        """All claims, in order: ``claims``, ``settings``, ``hardware`` and ``software``."""
        claims = []
        for check in (self._law, self._gains, self._speed, self._frozen, self._fid):
            for claim in check():
                self._say(f"{claim.claim}: {claim.found}")
                claims.append(claim)
        settings = {
            "steps": self._long,
            "draft_length": self._draft_length,
            "images": {str(steps): count for steps, count in self._images.items()},
        }
        device = torch.device(getattr(self._load(steps=self._brief), "device", "cpu"))
        return {"settings": settings, "claims": [asdict(claim) for claim in claims], **environment(device)}

    def _law(self) -> Iterator[Claim]:
        found = {rule: check_exactness(rule, count=self._paths) for rule in ("token", "reflection", "block")}
        tests = sum(len(each.p_values) for each in found.values())
        least = min(min(each.p_values.values()) for each in found.values())
        yield Claim(
            "The law is the sequential sampler's",
            "exact",
            f"least of {tests} p-values {least:.2g} (innovation test, {self._paths:,} paths each, of token, reflection "
            "and block verification)",
            all(each.passed for each in found.values()),
            law=True,
        )

    def _gains(self) -> Iterator[Claim]:
        n, gamma = self._long, self._draft_length
        most = self._gain(n)
        yield Claim(
            f"Block verification makes more steps a round than token verification ({n} steps, γ = {gamma})",
            "+1.5 … 6.3 %",
            str(most),
            most.value > 2 * most.error and most.value + 2 * most.error > 0.015,
        )
        noisy, quiet = self._gain(self._brief), self._gain(self._brief, eta=LITTLE_NOISE)
        yield Claim(
            f"The gain is larger with more noise ({self._brief} steps, γ = {gamma})",
            "larger",
            f"η = 1: {noisy}; η = {LITTLE_NOISE}: {quiet}",
            noisy.exceeds(quiet),
        )
        yield Claim(
            f"The gain is larger with more steps (γ = {gamma})",
            "larger",
            f"{n} steps: {most}; {self._brief} steps: {noisy}; the ceiling is {gamma + 1}",
            most.exceeds(noisy),
        )
        near = self._gain(self._middle, draft_length=SHORT)
        yield Claim(
            f"The gain is small where block efficiency is near its ceiling ({self._middle} steps, γ = {SHORT})",
            "small",
            f"{near}; the ceiling is {SHORT + 1}",
            near.value - 2 * near.error < min(0.015, noisy.value),
        )

    def _speed(self) -> Iterator[Claim]:
        n = self._long
        for name, settings in (("as in the paper", PAPER), ("this project's defaults", {})):
            stats = self._sample(n, verification="block", draft_length=self._draft_length, **settings).stats
            speedup = stats.sequential_speedup or 0.0
            yield Claim(
                f"Fewer sequential calls than the sequential sampler, {name} ({n} steps, γ = {self._draft_length})",
                "1.9 … 3.6 times fewer; 3.91 in a trial of 1000 steps",
                f"{speedup:.2f} times fewer, {stats.evaluations / stats.samples / n:.2f} evaluations a step",
                speedup >= 1.9,
            )
        block = {"verification": "block", "draft_length": self._draft_length}
        sequential, drafted = self._clocked(n, [SEQUENTIAL, block])
        ratio = sequential.seconds / drafted.seconds
        allowed = sequential.network / drafted.network
        yield Claim(
            f"Faster by the clock, one image at one lane ({n} steps)",
            "1.9 … 3.6 times",
            f"{ratio:.2f} times, {sequential.seconds:.2f} s against {drafted.seconds:.2f} s; a call on "
            f"{self._draft_length + 1} states costs {drafted.call / sequential.call:.1f} calls on one, on this "
            f"{self._device_kind()}",
            ratio >= 1.9,
        )
        yield Claim(
            "By the clock, what calls and the time of a batch allow",
            "at least 0.9 of it",
            f"{ratio / allowed:.3f} of {allowed:.2f} times",
            ratio >= 0.9 * allowed,
        )

    def _frozen(self) -> Iterator[Claim]:
        common: dict[str, Any] = {"verification": "block", "draft_length": self._draft_length}
        rules = [common | PAPER, common | PAPER | {"drafter": "frozen"}]
        free, frozen = (self._sample(self._middle, **rule).stats for rule in rules)
        yield Claim(
            f"The Frozen Drafter's block efficiency is above the Free Drafter's ({self._middle} steps)",
            "above",
            f"{frozen.block_efficiency:.2f} against {free.block_efficiency:.2f} steps a round",
            (frozen.block_efficiency or 0) > (free.block_efficiency or 0),
        )
        clocks = self._clocked(self._middle, rules)
        slower = clocks[1].seconds / clocks[0].seconds
        yield Claim(
            f"… but it is slower by the clock, one image at one lane ({self._middle} steps)",
            "slower",
            f"{clocks[1].seconds:.2f} s against {clocks[0].seconds:.2f} s on this {self._device_kind()}; "
            f"{frozen.calls / frozen.samples:.0f} calls against {free.calls / free.samples:.0f}",
            None if abs(slower - 1) < CLOSE else slower > 1,
        )

    def _fid(self) -> Iterator[Claim]:
        if self._quality is None:
            yield Claim("Quality is unchanged", "unchanged", "not judged: no extractor was given", None, law=True)
            return
        n, count = self._brief, self._images[self._brief]
        block = self._sample(n, verification="block", draft_length=self._draft_length, **PAPER)
        self._say(f"sampling  {count} images, {n} steps, sequential")
        sequential = self._sampler(self._load(steps=n), SEQUENTIAL).sample(self._requests[count : 2 * count])
        a, b = (
            self._quality.features(np.stack([sample.image for sample in result.samples if sample.image is not None]))
            for result in (sequential, block)
        )
        scores = [self._quality.score(each) for each in (a, b)]
        both = torch.cat([a, b])
        generator = torch.Generator().manual_seed(0)
        differences = []
        for _ in range(PERMUTATIONS):
            order = torch.randperm(len(both), generator=generator)
            first, second = both[order[:count]], both[order[count:]]
            differences.append(abs(self._quality.score(first) - self._quality.score(second)))
        found = abs(scores[0] - scores[1])
        p_value = (1 + sum(each >= found for each in differences)) / (1 + PERMUTATIONS)
        yield Claim(
            f"{self._quality.name} is unchanged ({n} steps)",
            "unchanged",
            f"{scores[1]:.2f} against the sequential sampler's {scores[0]:.2f}, {count} images each; p = {p_value:.2g} "
            "that two halves of one set differ so much",
            p_value > 0.01,
            law=True,
        )

    def _gain(self, steps: int, *, eta: float = 1.0, draft_length: int | None = None) -> Gain:
        settings = {"draft_length": draft_length or self._draft_length, **PAPER}
        token, block = (
            np.array([s.rounds for s in self._sample(steps, eta=eta, verification=rule, **settings).samples])
            for rule in ("token", "block")
        )
        count = len(token)
        every = np.arange(count)
        without = [token[every != i].sum() / block[every != i].sum() for i in every]
        error = float(np.std(without)) * math.sqrt(count - 1)
        return Gain(float(token.sum() / block.sum()) - 1, error, float(count * steps / block.sum()))

    def _sample(self, steps: int, *, eta: float = 1.0, **settings: Any) -> Result:
        """Images of these settings, made once."""
        key = (steps, eta, *sorted(settings.items()))
        if key not in self._results:
            count = self._images[steps]
            said = ", ".join(f"{name} {value}" for name, value in settings.items())
            self._say(f"sampling  {count} images, {steps} steps, η = {eta}, {said}")
            target = self._load(steps=steps, eta=eta)
            self._results[key] = self._sampler(target, settings).sample(self._requests[:count])
        return self._results[key]

    def _sampler(self, target: Target, settings: dict[str, Any], lanes: int = 16) -> Sampler:
        return Sampler(target, lanes=lanes, **settings)

    def _clocked(self, steps: int, compared: Sequence[dict[str, Any]]) -> list[Clock]:
        """Medians over images, one at a time at one lane, the samplers in turns after one image to warm up."""
        self._say(f"timing    {TURNS} images at one lane, {steps} steps")
        target = clocked(self._load(steps=steps))
        samplers = [self._sampler(target, settings, lanes=1) for settings in compared]
        times: list[list[tuple[float, float, int]]] = [[] for _ in samplers]
        for turn in range(TURNS + 1):
            for sampler, taken in zip(samplers, times, strict=True):
                seconds, network, sample = timed_image(target, sampler, self._requests[turn])
                if turn:
                    taken.append((seconds, network, sample.calls))
        return [Clock(*(statistics.median(column) for column in zip(*taken, strict=True))) for taken in times]

    def _device_kind(self) -> str:
        device = torch.device(getattr(self._load(steps=self._brief), "device", "cpu"))
        return "GPU" if device.type == "cuda" else "CPU"


@dataclass(frozen=True)
class Clock:
    """Medians of one image: seconds, those of them in the network, and calls."""

    seconds: float
    network: float
    calls: float

    @property
    def call(self) -> float:
        """Seconds of a call."""
        return self.network / self.calls


def claims_table(report: dict[str, Any]) -> str:
    """Each claim with the paper's figure and ours."""
    lines = []
    for claim in report["claims"]:
        mark = {True: "holds", False: "does not hold here", None: "cannot be told"}[claim["holds"]]
        lines += [claim["claim"], f"    paper  {claim['paper']}", f"    here   {claim['found']}", f"    {mark}"]
    return "\n".join(lines)
