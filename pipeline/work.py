"""What the making of images cost a worker: what its commit records say of it."""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch


@dataclass
class Work:
    """A worker's time up to a commit, since its commit before that; sums over records are exact.

    The device's own time is `network + coupling + idle`; decoding, encoding and upload go on beside it, in a thread of
    their own.

    Attributes:
        worker: names the worker's process.
        run: when the run began that it belongs to, in seconds of UNIX time by the driver's clock.
        began, ended: when the first of the rows was begun, and when the record was about to be created.
        start: seconds from the worker's start to its first work, in its first record; 0 in the others.
        network: seconds in the target's network, by the device's own clock.
        coupling: seconds of the sampling thread in all else that a round does: drafts and verification.
        idle: seconds that the sampling thread waited for rows.
        decoding, encoding: seconds of the background thread that made pixels of states, and image files of pixels.
        upload: seconds of it that wrote, uploaded and read back data files.
        peak_memory: most bytes of main memory that the process has had so far.
        peak_device_memory: most bytes of a GPU that it has had; 0 without one.
    """

    worker: str = ""
    run: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    start: float = 0.0
    network: float = 0.0
    coupling: float = 0.0
    idle: float = 0.0
    decoding: float = 0.0
    encoding: float = 0.0
    upload: float = 0.0
    peak_memory: int = 0
    peak_device_memory: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Work:
        """Of a record that another version wrote as well: what is not known is dropped, what lacks is 0."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def peak_memory() -> int:
    """Most bytes of main memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_memory(device: str) -> int:
    """Most bytes of the GPU that this process has had in use; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0
