"""Pictures of clothes for tests of what scores them, and the forms in which torch-fidelity takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from pipeline.encoding import encode
from pipeline.features import key_hash
from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER, load_split


def clothes(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """uint8 [count, 28, 28, 1] and classes [count]: blurred noise where the real images are not installed."""
    if DEFAULT_FOLDER.exists():
        images, labels = load_split("t10k")
        return images[:count, :, :, None].copy(), labels[:count].astype(np.int64)
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(count, 1, 28, 28, generator=generator) * torch.rand(count, 1, 1, 1, generator=generator)
    blurred = torch.nn.functional.avg_pool2d(noise, 5, stride=1, padding=2)
    return (255 * blurred).to(torch.uint8).permute(0, 2, 3, 1).numpy(), np.arange(count) % 10


def write_pictures(folder: Path, images: NDArray[np.uint8], image_format: str = "png") -> str:
    """A folder of image files `0000.png`, `0001.png`, …"""
    folder.mkdir()
    for number, image in enumerate(images):
        (folder / f"{number:04}.{image_format}").write_bytes(encode(image, image_format))
    return str(folder)


class Images(Dataset):  # type: ignore[type-arg]
    """Images uint8 [count, height, width, channels] as torch-fidelity's input, grey as three equal channels."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        rows = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        self._rows = rows.expand(-1, 3, -1, -1)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index]


def lowest(keys: list[str], limit: int) -> list[int]:
    """Places of the keys that hash lowest, in that order: which images KID, precision and recall look at."""
    return sorted(range(len(keys)), key=lambda place: key_hash(keys[place]))[:limit]
