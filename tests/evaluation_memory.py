"""Evaluates a set by a cheap extractor of 1024 features and prints the process's peak memory in MiB.

``python evaluation_memory.py FOLDER REFERENCE.npz [hoard]``; `hoard` keeps all features, to show that it would be seen.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import torch
from committed_set import job
from torch import Tensor

import pipeline.aggregate
import pipeline.evaluation
from pipeline.aggregate import Aggregate
from pipeline.extractors import Extractor
from pipeline.features import Features
from pipeline.storage import Storage
from pipeline.subset import Subset

FEATURES = 1024
MATRIX = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(0))


def network(images: Tensor) -> tuple[Tensor]:
    """Of 8×8 pixels: uint8 [rows, 3, 8, 8] → float32 [rows, 1024]."""
    return (torch.relu(images.float().mean(dim=1).flatten(1) @ MATRIX),)


class Hoarding(Aggregate):
    kept: list[Features] = []  # noqa: RUF012

    def add(self, features: Features) -> None:
        self.kept.append(features)
        super().add(features)


if __name__ == "__main__":
    uri, reference, *hoard = sys.argv[1:]
    # A subset that both sizes fill.
    pipeline.aggregate.Subset = partial(Subset, 500)  # type: ignore[misc]
    if hoard:
        pipeline.evaluation.Aggregate = Hoarding  # type: ignore[misc]
    cheap = Extractor("cheap", "0", str(FEATURES), None, "none", network, "cpu")
    pipeline.evaluation.load_extractor = lambda *_: cheap
    pipeline.evaluation.PLAIN_IMAGES = 10**9
    settings = job(extractor="cheap", reference=reference)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of imports
    found = pipeline.evaluation.evaluate(Storage(uri), settings, partial=False, threads=1, device="cpu")
    # Not what getrusage says, which knows of the parent's memory before this program was loaded.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(found["fid"]["count"], int(peak) / 1024)
