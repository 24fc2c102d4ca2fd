"""Whether samplers draw from one law, by `specdiff compare`'s test: ``python tests/same_law.py --images 10000``.

Sets of as many images each are made with seeds of their own; the record goes to docs/records/same-law.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.extractors import load_extractor
from pipeline.features import BATCH
from pipeline.two_sample import Band, unpaired_band
from specdiff import Request, Sampler, load_target
from specdiff.environment import environment

RECORD = Path(__file__).parents[1] / "docs" / "records" / "same-law.json"
STEPS, FEWER, SPLITS, LANES = 50, 10, 99, 32
SEQUENTIAL = {"verification": "none"}
BLOCK = {"verification": "block", "drafter": "free", "draft_length": 3}


class KeepsAll:
    """A verification that keeps every draft unlooked-at: the law is then the drafter's."""

    fresh_noise = True

    def accept(self, length: Tensor, log_ratio: Tensor, delta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return length, torch.zeros(len(length), dtype=torch.float64, device=length.device)

    def correct(self, log_alpha: Tensor, delta: Tensor, s: Tensor, v: Tensor) -> Tensor:
        return s


# name → steps, and settings of the sampler
SETS: dict[str, tuple[int, dict[str, Any]]] = {
    "sequential": (STEPS, SEQUENTIAL),
    "block": (STEPS, BLOCK),
    "fewer steps": (FEWER, SEQUENTIAL),
    "biased": (STEPS, {**BLOCK, "draft_length": 7, "verification": KeepsAll()}),
}


def features(name: str, images: int, first_seed: int) -> NDArray[np.float32]:
    """Features of one set's images, float32 [images, 64]; classes in turn, so that row i is of class i mod 10."""
    steps, settings = SETS[name]
    sampler = Sampler(load_target("fashion-mnist", steps=steps), lanes=LANES, **settings)
    extractor = load_extractor("fashion-mnist", None, "cpu")
    requests = (Request(str(i), first_seed + i, label=i % 10) for i in range(images))
    found = np.empty((images, 64), np.float32)
    waiting: list[tuple[int, Tensor]] = []

    def flush() -> None:
        rows = torch.stack([image for _, image in waiting]).permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
        found[[place for place, _ in waiting]] = extractor(rows)[extractor.feature_layer].numpy()
        waiting.clear()

    for sample in sampler.stream(requests):
        assert sample.image is not None, sample.error
        waiting.append((int(sample.key), torch.from_numpy(sample.image)))
        if len(waiting) == BATCH:
            flush()
    if waiting:
        flush()
    return found


def band(a: NDArray[np.float32], b: NDArray[np.float32]) -> Band:
    classes = np.arange(len(a)) % 10
    return unpaired_band(a, b, classes, classes, SPLITS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000, help="of each set")
    parser.add_argument("--output", type=Path, default=RECORD)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    made = {}
    for place, name in enumerate(SETS):
        made[name] = features(name, arguments.images, place * 10_000_000)
        print(f"{name}: {arguments.images} images, {(time.monotonic() - began) / 60:.1f} min", flush=True)
    rows = []
    for name in SETS:
        if name != "sequential":
            found = band(made["sequential"], made[name])
            rows.append(
                {
                    "against sequential": name,
                    "fid": found.distance,
                    "noise band": [found.splits[0], float(np.median(found.splits)), found.splits[-1]],
                    "p": found.p_value,
                    "same": found.same,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    record = {
        "command": f"python tests/same_law.py --images {arguments.images}",
        "target": "fashion-mnist",
        "images": arguments.images,
        "steps": STEPS,
        "fewer": FEWER,
        "block": BLOCK,
        "biased": "drafts of 7, every one of them kept",
        "splits": SPLITS,
        "false_alarm_rate": 1 / (1 + SPLITS),
        "rows": rows,
        "minutes": (time.monotonic() - began) / 60,
        **environment(torch.device("cpu")),
    }
    arguments.output.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
