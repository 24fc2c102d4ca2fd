"""Samplers side by side on one device.

Two things are kept apart. What a sampler *does* (calls, evaluations, drafts kept, images) is counted over whole images;
it depends on seeds alone. What that *costs* is timed in short turns that the samplers take one after the other, again
and again, so that a busy machine slows them alike; the first turn of each, which warms up, is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdiff.clock import Clocked, clocked
from specdiff.environment import environment
from specdiff.requests import Request, Sample
from specdiff.sampler import Run, Sampler
from specdiff.targets.base import Target

FEWEST_ROUNDS = 3
GROUPS = 10


class Load(Protocol):
    """Loads the target with a number of steps, and with further settings of its own."""

    def __call__(self, *, steps: int, **settings: Any) -> Target: ...


class Quality(Protocol):
    """How images are judged; less is better.

    Attributes:
        name: of the measure, as in "FID".
    """

    name: str

    def features(self, images: NDArray[np.uint8]) -> Tensor:
        """What is compared, [rows, dimensions], of images uint8 [rows, height, width, channels]."""
        ...

    def score(self, features: Tensor) -> float:
        """The measure of a set of images, by its features."""
        ...


@dataclass(frozen=True)
class Entry:
    """A sampler to be measured: its name in tables, its steps, and settings of ``Sampler`` but for the lanes."""

    name: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)


def entries(steps: int, draft_lengths: Sequence[int], **common: Any) -> list[Entry]:
    """Those that are always compared: sequential ones, of fewer steps too, and each verification and drafter.

    Args:
        steps: N.
        draft_lengths: γ; token and reflection have the first.
        common: further settings of ``Sampler``.
    """
    sequential = {"verification": "none"}
    found = [
        Entry("sequential", steps, sequential),
        Entry("sequential, half the steps", max(steps // 2, 2), sequential),
        Entry("sequential, a quarter", max(steps // 4, 2), sequential),
    ]
    first = draft_lengths[0]
    for verification in ("token", "reflection"):
        settings = {"verification": verification, "drafter": "free", "draft_length": first, **common}
        found.append(Entry(f"{verification}, free, γ = {first}", steps, settings))
    for drafter in ("free", "frozen"):
        for length in sorted(draft_lengths):
            settings = {"verification": "block", "drafter": drafter, "draft_length": length, **common}
            found.append(Entry(f"block, {drafter}, γ = {length}", steps, settings))
    return found


def measure(
    load: Load,
    compared: Sequence[Entry],
    requests: Sequence[Request],
    *,
    lanes: int,
    repeats: int = 5,
    turn: float = 1.0,
    quality: Quality | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare samplers; the first is what the others are held against.

    Args:
        load: makes the target.
        compared: at least one.
        requests: images over which calls and quality are counted; the clock runs over the same, again and again.
        lanes: images in progress for throughput. Latency is that of one image at one lane.
        repeats: turns of each, after the one that warms up.
        turn: seconds of a turn, at least, for throughput. For latency a turn is an image.
        quality: judges the images, all of a row's together.
        say: is told what is being done.

    Returns:
        ``rows``, one an entry; ``settings``; ``hardware`` and ``software``.
    """
    targets = {steps: clocked(load(steps=steps)) for steps in dict.fromkeys(entry.steps for entry in compared)}
    device = targets[compared[0].steps].device
    rows = []
    for entry in compared:
        say(f"counting  {entry.name}")
        rows.append(_counted(targets[entry.steps], entry, requests, lanes, quality))
    takers = [_Turns(targets[entry.steps], entry, requests, lanes) for entry in compared]
    for repeat in range(repeats + 1):
        say(f"timing    turn {repeat} of {repeats}")
        for taker in takers:
            taker.take(turn, requests[repeat % len(requests)], keep=repeat > 0)
    for row, taker in zip(rows, takers, strict=True):
        row |= taker.result(row["rounds_per_image"], lanes)
    first = rows[0]
    for row in rows:
        row["throughput_ratio"] = row["images_per_s"]["median"] / first["images_per_s"]["median"]
        row["latency_ratio"] = first["latency_s"]["median"] / row["latency_s"]["median"]
    settings = {"lanes": lanes, "images": len(requests), "repeats": repeats, "turn_s": turn}
    return {"settings": settings, "rows": rows, **environment(device)}


class _Turns:
    """One sampler's turns: rounds of full lanes in mid-flight, and whole images at one lane."""

    def __init__(self, target: Clocked, entry: Entry, requests: Sequence[Request], lanes: int) -> None:
        self._target = target
        self._run = Sampler(target, lanes=lanes, **entry.settings).start()
        self._alone = Sampler(target, lanes=1, **entry.settings)
        self._requests = cycle(requests)
        self._per_round: list[float] = []
        self._overhead: list[float] = []
        self._latency: list[float] = []

    def take(self, seconds: float, request: Request, keep: bool) -> None:
        self._target.taken()
        rounds, start = 0, time.perf_counter()
        while rounds < FEWEST_ROUNDS or time.perf_counter() - start < seconds:
            _advance(self._run, self._requests)
            rounds += 1
        self._target.wait()
        whole = time.perf_counter() - start
        network = self._target.taken()
        latency, _, _ = timed_image(self._target, self._alone, request)
        if keep:
            self._per_round.append(whole / rounds)
            self._overhead.append((whole - network) / network)
            self._latency.append(latency)

    def result(self, rounds_per_image: float, lanes: int) -> dict[str, Any]:
        return {
            "images_per_s": spread([lanes / (rounds_per_image * each) for each in self._per_round]),
            "latency_s": spread(self._latency),
            "overhead": spread(self._overhead),
        }


def timed_image(target: Clocked, sampler: Sampler, request: Request) -> tuple[float, float, Sample]:
    """Make one image alone: seconds by the clock, seconds of the network among them, and the image."""
    target.taken()
    start = time.perf_counter()
    (sample,) = sampler.sample([request]).samples
    target.wait()
    return time.perf_counter() - start, target.taken(), sample


def _advance(run: Run, requests: Iterator[Request]) -> None:
    run.submit(list(islice(requests, run.free)))
    run.round()


def _counted(
    target: Clocked, entry: Entry, requests: Sequence[Request], lanes: int, quality: Quality | None
) -> dict[str, Any]:
    """What an entry does, over whole images."""
    watch = PeakMemory(target.device)
    sampler = Sampler(target, lanes=lanes, **entry.settings)
    result = sampler.sample(requests)
    stats = result.stats
    if stats.failed:
        reason = next(sample.error for sample in result.samples if sample.error)
        raise ValueError(f"{entry.name}: {stats.failed} of {len(requests)} images failed: {reason}")
    return {
        "name": entry.name,
        "steps": entry.steps,
        "settings": dict(entry.settings),
        "sequential": sampler.draft_length == 0,
        "images": stats.samples,
        "sequential_speedup": stats.sequential_speedup,
        "block_efficiency": stats.block_efficiency,
        "rounds_per_image": stats.rounds / stats.samples,
        "calls_per_image": stats.calls / stats.samples,
        "evaluations_per_image": stats.evaluations / stats.samples,
        "accepted_by_position": [
            kept / drafted
            for kept, drafted in zip(stats.accepted_by_position, stats.drafted_by_position, strict=True)
            if drafted
        ],
        "along": stats.along() if sampler.draft_length else None,
        "peak_memory_bytes": watch.peak(),
        "quality": _judged(result.samples, quality),
    }


def _judged(samples: Sequence[Sample], quality: Quality | None) -> dict[str, Any] | None:
    if quality is None:
        return None
    features = quality.features(np.stack([sample.image for sample in samples if sample.image is not None]))
    return {
        "name": quality.name,
        "value": quality.score(features),
        "error": _jackknife(features, quality.score),
        "count": len(features),
    }


def _jackknife(features: Tensor, score: Callable[[Tensor], float]) -> float:
    """Standard error of a score, by leaving out one of GROUPS groups of rows at a time."""
    group = torch.arange(len(features)) * GROUPS // len(features)
    found = np.array([score(features[group != left_out]) for left_out in group.unique()])
    return float(np.sqrt((len(found) - 1) * np.var(found)))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "low": low, "high": high}


class PeakMemory:
    """The most memory in use from here on: the allocator's on a GPU, elsewhere the process's own, where Linux tells."""

    _CLEAR = Path("/proc/self/clear_refs")
    _STATUS = Path("/proc/self/status")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._works = True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            self._CLEAR.write_text("5")
        except OSError:
            self._works = False

    def peak(self) -> int | None:
        """Bytes; None where it cannot be told."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not self._works:
            return None
        line = next(line for line in self._STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
