"""Image files to the uint8 batches that an extractor takes, and what they were like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.decoding import decode
from pipeline.errors import PipelineError


@dataclass(frozen=True)
class Picture:
    """One image file.

    Attributes:
        key: names it in its set; decides whether it is in the set's subset.
        label: its class, where it has one.
        data: the file's bytes.
        name: what an error calls it.
    """

    key: str
    label: int | None
    data: bytes
    name: str


@dataclass(frozen=True)
class Facts:
    """What the images of a set are like; those of two parts add up.

    Attributes:
        count: of images.
        width, height: in pixels, smallest and largest.
        formats: of their files, as Pillow calls them, with the number of each.
    """

    count: int
    width: tuple[int, int]
    height: tuple[int, int]
    formats: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Facts) -> Facts:
        return Facts(
            self.count + other.count,
            (min(self.width[0], other.width[0]), max(self.width[1], other.width[1])),
            (min(self.height[0], other.height[0]), max(self.height[1], other.height[1])),
            self.formats + other.formats,
        )

    @property
    def resolution(self) -> str:
        """`28×28`, or `28×28 to 64×48` where the images are of several sizes."""
        smallest, largest = (f"{self.width[i]}×{self.height[i]}" for i in range(2))
        return smallest if smallest == largest else f"{smallest} to {largest}"

    @property
    def told_formats(self) -> str:
        """`PNG`, or `JPEG and PNG`."""
        return " and ".join(sorted(self.formats))


@dataclass(frozen=True)
class Batch:
    """Images of one size, uint8 [rows, 3, height, width], with the pictures that they are."""

    pictures: tuple[Picture, ...]
    images: Tensor
    facts: Facts


def batches(pictures: Iterable[Picture], rows: int) -> Iterator[Batch]:
    """Pictures in order, in batches of at most so many; one ends where the size of the images changes.

    Raises:
        PipelineError: an image cannot be read or is of a kind that is not scored.
    """
    decoded = ((picture, *rgb(picture.data, picture.name)) for picture in pictures)
    for (height, width), group in groupby(decoded, key=lambda each: each[1].shape[:2]):
        while part := list(islice(group, rows)):
            chosen, images, formats = zip(*part, strict=True)
            facts = Facts(len(part), (width, width), (height, height), Counter(formats))
            yield Batch(chosen, torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), facts)


def rgb(data: bytes, name: str) -> tuple[NDArray[np.uint8], str]:
    """Decode an image file: uint8 [height, width, 3], and its format. Grey becomes three equal channels.

    Raises:
        PipelineError: it cannot be read, or has transparency, a palette, four colours or more than 8 bits, for which
            there is no one right conversion.
    """
    image = decode(data, name)
    if image.mode not in ("L", "RGB"):
        raise PipelineError(
            f"{name}: a picture of mode {image.mode}; only 8-bit grey and RGB are scored. Convert it, or leave it out."
        )
    return np.asarray(image.convert("RGB")), str(image.format)
