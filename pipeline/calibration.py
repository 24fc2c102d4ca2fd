"""The Kalman gain of a target by name, into a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import specdiff
from pipeline.errors import Unavailable, UsageError
from specdiff.targets import TargetUnavailable


def calibrate_target(name: str, steps: int | None, trajectories: int, output: str, say: Callable[[str], None]) -> None:
    """Run sequential trajectories of all classes in turn, and write the gain as safetensors.

    Raises:
        UsageError: an unknown target, settings that it refuses, or a file that cannot be written.
        Unavailable: the target would have to be downloaded, and the hub is out of reach.
    """
    settings = {} if steps is None else {"steps": steps}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        info = specdiff.inspect_target(name, **settings)
        target = specdiff.load_target(name, device=device, **settings)
    except ValueError as error:
        raise UsageError(f"target: {error}") from error
    except TargetUnavailable as error:
        raise Unavailable(f"target: {error}") from error
    if info.takes_prompts:
        raise UsageError(f"{name}: calibration by prompts is not built yet")
    labels = [None if info.num_classes is None else i % info.num_classes for i in range(trajectories)]
    requests = [specdiff.Request(str(i), i, label=label) for i, label in enumerate(labels)]
    say(f"{trajectories} trajectories of {info.steps} steps on {device}")
    gain = specdiff.calibrate(target, trajectories, requests=requests)
    try:
        Path(output).write_bytes(gain.to_bytes())
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from error
    say(f"{output}: shrinkage at {len(gain.snr)} signal-to-noise ratios, {gain.shrinkage[0].numel()} frequencies each")
