"""How much of a round is not the network: ``python -m specdiff.overhead``.

Both parts are timed in the same rounds, so that a busy machine slows them alike; the figure is the median over rounds
of (round − network call) / network call, all lanes in mid-flight.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdiff.requests import Request
from specdiff.sampler import Sampler
from specdiff.targets import load_target
from specdiff.targets.base import Target


class Timed:
    """A target that adds up the time its network takes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        start = time.perf_counter()
        answer = self._target.denoise(state, step, conditioning)
        self.seconds += time.perf_counter() - start
        return answer


def measure(lanes: int, draft_length: int, steps: int, rounds: int) -> dict[str, Any]:
    """Time rounds of the built-in target on one CPU thread.

    Returns:
        Settings, medians in milliseconds, the overhead as a share of the network call with its quartiles, and the
        machine and software.
    """
    torch.set_num_threads(1)
    target = Timed(load_target("fashion-mnist", steps=steps))
    run = Sampler(target, lanes=lanes, draft_length=draft_length).start()
    run.submit([Request(str(i), i, label=i % 10) for i in range(lanes)])
    network, rest = [], []
    for i in range(rounds + 5):
        target.seconds, start = 0.0, time.perf_counter()
        run.round()
        whole = time.perf_counter() - start
        if i >= 5:
            network.append(target.seconds * 1e3)
            rest.append(whole * 1e3 - target.seconds * 1e3)
    shares = [r / n for r, n in zip(rest, network, strict=True)]
    quartiles = statistics.quantiles(shares, n=4)
    return {
        "settings": {"lanes": lanes, "draft_length": draft_length, "steps": steps, "rounds": rounds, "threads": 1},
        "network_ms": statistics.median(network),
        "rest_ms": statistics.median(rest),
        "overhead": statistics.median(shares),
        "overhead_quartiles": [quartiles[0], quartiles[2]],
        "machine": {"processor": _processor(), "system": platform.system(), "architecture": platform.machine()},
        "software": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--draft-length", type=int, default=7)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.lanes, arguments.draft_length, arguments.steps, arguments.rounds), indent=2))
