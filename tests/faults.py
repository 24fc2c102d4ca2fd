"""Small targets with faults, registered by name in this process and, through Ray's set-up hook, in workers.

Each draws grey pictures from a Gaussian mixture; the fault strikes at the row whose seed is `FAULTY_SEED`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.commits import CommitRecord
from pipeline.publish import Publication
from specdiff import Request, TargetInfo, Transitions
from specdiff.targets import GaussianMixture, register

MARKS = "SPECDIFF_TEST_MARKS"  # environment variable: the folder in which a fault that strikes once leaves its mark
FAULTY_SEED = 5
SIDE = 8


class Pictures(GaussianMixture):
    """Grey pictures of 8 × 8 pixels around four means."""

    def __init__(self, fault: Callable[[], bool], *, device: str = "cpu", steps: int = 20) -> None:
        """`fault` is called when the faulty row is begun, and says whether its predictions are NaN."""
        generator = torch.Generator().manual_seed(0)
        means = torch.randn(4, SIDE * SIDE, generator=generator, dtype=torch.float64)
        alpha_bar = torch.cos(torch.pi / 2 * (1 - torch.arange(steps, dtype=torch.float64) / steps)) ** 2
        alpha_bar[0] = 0
        super().__init__(means, torch.full((4,), 0.3), torch.ones(4), Transitions.ddim(alpha_bar))
        self._fault = fault

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        return {"nan": torch.tensor([request.seed == FAULTY_SEED and self._fault() for request in requests])}

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        return torch.where(conditioning["nan"][:, None], torch.nan, super().denoise(state, step, {}))

    def decode(self, latents: Tensor) -> Tensor:
        return super().decode(latents).view(-1, SIDE, SIDE, 1)


class Slow(Pictures):
    """Takes its time, so that there is some to interrupt it."""

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        time.sleep(0.02)
        return super().denoise(state, step, conditioning)


class Logged(Pictures):
    """Takes its time, and leaves a line for each row that it begins, in a file of its process."""

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        with Path(os.environ[MARKS], f"begun-{os.getpid()}").open("a") as file:
            file.writelines(f"{request.seed}\n" for request in requests)
        return super().condition(requests)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        time.sleep(0.15)
        return super().denoise(state, step, conditioning)


class Untold(Pictures):
    """Its worker dies once, right after it recorded shard 1 and before it could tell."""

    def __init__(self, fault: Callable[[], bool], **settings: Any) -> None:
        import pipeline.worker

        super().__init__(fault, **settings)
        publish = pipeline.worker.publish

        def publish_and_die(publication: Publication) -> CommitRecord:
            record = publish(publication)
            if record.shard == 1 and first_time("untold"):
                os._exit(1)
            return record

        pipeline.worker.publish = publish_and_die


class BadNode(Pictures):
    """On the node whose name is in the file `bad-node` among the marks, nothing can be published; others come later."""

    def __init__(self, fault: Callable[[], bool], **settings: Any) -> None:
        import ray

        import pipeline.worker

        super().__init__(fault, **settings)

        def publish(publication: Publication) -> CommitRecord:
            first_time("bad-node-used")
            raise OSError("no space left on device")

        if ray.get_runtime_context().get_node_id() == Path(os.environ[MARKS], "bad-node").read_text():
            pipeline.worker.publish = publish
        while pipeline.worker.publish is not publish and not Path(os.environ[MARKS], "bad-node-used").exists():
            time.sleep(0.1)


def first_time(name: str) -> bool:
    """Whether this is the first call with this name by any process of the session."""
    try:
        Path(os.environ[MARKS], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fault_exit() -> bool:
    os._exit(1)


def fault_late_exit() -> bool:
    time.sleep(3)  # the driver has heard by then of what was finished before
    os._exit(1)


def fault_raise() -> bool:
    raise RuntimeError("device lost")


def fault_hang() -> bool:
    time.sleep(3600)
    return False


FAULTS: dict[str, Callable[[], bool]] = {
    "pictures": lambda: False,
    "pictures-nan": lambda: True,
    "pictures-nan-once": lambda: first_time("nan"),
    "pictures-exit": fault_exit,
    "pictures-exit-once": lambda: first_time("exit") and fault_exit(),
    "pictures-late-exit-once": lambda: first_time("late") and fault_late_exit(),
    "pictures-hang-once": lambda: first_time("hang") and fault_hang(),
    "pictures-raise-once": lambda: first_time("raise") and fault_raise(),
}


class _Named:
    """What the registry asks of a target: to be built, and to be described."""

    def __init__(self, name: str, build: Callable[..., Pictures]) -> None:
        self._name, self._build = name, build

    def __call__(self, **settings: Any) -> Pictures:
        return self._build(**settings)

    def info(self, steps: int = 20) -> TargetInfo:
        return TargetInfo(
            name=self._name,
            description="pictures for tests",
            shape=(1, SIDE, SIDE),
            num_classes=None,
            has_null_class=False,
            takes_prompts=False,
            steps=steps,
            licence="MIT",
            weights_sha256=None,
        )


def register_targets() -> None:
    for name, fault in FAULTS.items():
        register(name, _Named(name, partial(Pictures, fault)))
    kinds = {"slow": Slow, "logged": Logged, "untold": Untold, "bad-node": BadNode}
    for name, kind in ((f"pictures-{name}", kind) for name, kind in kinds.items()):
        register(name, _Named(name, partial(kind, FAULTS["pictures"])))
