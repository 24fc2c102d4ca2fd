"""What a round costs besides the network call: ``python -m specdiff.overhead [--device cuda]``.

On a CPU that is the built-in target with 16 lanes. On a GPU it is a network of 35 million parameters at 32×32 with 8
lanes, plain and compiled, in float32 and bfloat16; where the time goes is written beside the figures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from specdiff.bench import Entry, measure
from specdiff.requests import Request
from specdiff.sampler import Sampler
from specdiff.targets import load_target
from specdiff.targets.fashion_mnist.target import FashionMNIST
from specdiff.targets.fashion_mnist.unet import UNet
from specdiff.targets.network import prepare

DRAFT_LENGTH, STEPS = 7, 250
SAMPLER: dict[str, Any] = {"verification": "block", "drafter": "free", "draft_length": DRAFT_LENGTH}


class Wide(FashionMNIST):
    """The built-in network 30 times as large, with random weights: its time is what counts."""

    shape = (1, 32, 32)

    def __init__(self, *, dtype: str = "float32", compile: bool = False, **settings: Any) -> None:
        super().__init__(dtype=dtype, compile=compile, **settings)
        network = UNet(widths=(352, 544), conditioning=512)
        self._network = prepare(network, device=str(self.device), dtype=dtype, compiled=compile)


def overhead(target: str, lanes: int, **settings: Any) -> dict[str, Any]:
    """Share of the network call's time that the rest of a round takes, with the machine that it was measured on."""
    requests = [Request(str(i), i, label=i % 10) for i in range(lanes)]
    load = Wide if target == "wide" else lambda **more: load_target(target, **more)
    found = measure(
        lambda *, steps, **_: load(steps=steps, **settings),
        [Entry("block + free", STEPS, SAMPLER)],
        requests,
        lanes=lanes,
    )
    return {
        "target": target,
        "steps": STEPS,
        "lanes": lanes,
        "draft_length": DRAFT_LENGTH,
        **settings,
        "overhead": found["rows"][0]["overhead"],  # of the network call's time
        "hardware": found["hardware"],
        "software": found["software"],
    }


def _profiled(lanes: int, **settings: Any) -> str:
    """A table of where ten rounds' time goes on a GPU."""
    run = Sampler(Wide(steps=STEPS, **settings), lanes=lanes, **SAMPLER).start()
    run.submit([Request(str(i), i) for i in range(lanes)])
    for _ in range(3):  # compilation, and rounds that draft nothing
        run.round()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(10):
            run.round()
    return found.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", type=Path, help="file for the profile of rounds on a GPU")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device == "cpu":
        print(json.dumps(overhead("fashion-mnist", 16), indent=2))
        return
    forms = [{"dtype": dtype, "compile": compiled} for dtype in ("float32", "bfloat16") for compiled in (False, True)]
    print(json.dumps([overhead("wide", 8, device=arguments.device, **form) for form in forms], indent=2))
    if arguments.profile:
        arguments.profile.write_text(_profiled(8, device=arguments.device, **forms[-1]))


if __name__ == "__main__":
    main()
