"""Features of a set's images with what is needed of each image to make every metric of them, and their npz form."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.extractors import Extractor
from pipeline.pictures import Facts, Picture, batches

BATCH = 64
FORMAT = 1


@dataclass(frozen=True)
class Features:
    """Of some images, in order.

    Attributes:
        layers: name of a layer → float32 [rows, dimensions].
        hashes: of the images' keys (`key_hash`), uint64 [rows].
        labels: their classes, int64 [rows]; −1 for none.
        facts: what the images are like.
    """

    layers: dict[str, NDArray[np.float32]]
    hashes: NDArray[np.uint64]
    labels: NDArray[np.int64]
    facts: Facts

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """One after the other."""
        return cls(
            {layer: np.concatenate([part.layers[layer] for part in parts]) for layer in parts[0].layers},
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.labels for part in parts]),
            reduce(add, (part.facts for part in parts)),
        )

    def to_bytes(self, **identity: str) -> bytes:
        """An npz file that says what it was computed from and by."""
        buffer = io.BytesIO()
        facts = {"width": self.facts.width, "height": self.facts.height, "formats": self.facts.formats}
        said = json.dumps({"format": FORMAT, **identity, "facts": facts})
        arrays: dict[str, Any] = {f"layer_{name}": values for name, values in self.layers.items()}
        np.savez(buffer, said=np.array(said), hashes=self.hashes, labels=self.labels, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, layers: Iterable[str], **identity: str) -> Features | None:
        """What `to_bytes` wrote; None where it is damaged, lacks a layer, or was computed from or by something else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                said = json.loads(str(archive["said"]))
                found = {name: archive[f"layer_{name}"] for name in layers}
                hashes, labels = archive["hashes"], archive["labels"]
            facts = said.pop("facts")
            if said != {"format": FORMAT, **identity}:
                return None
            width, height = ((int(low), int(high)) for low, high in (facts["width"], facts["height"]))
            return cls(found, hashes, labels, Facts(len(hashes), width, height, Counter(facts["formats"])))
        except (KeyError, ValueError, TypeError, OSError, zipfile.BadZipFile):
            return None


def extracted(pictures: Iterable[Picture], extractor: Extractor, batch: int = BATCH) -> Iterator[Features]:
    """Features of pictures in order, a batch at a time.

    Raises:
        PipelineError: an image cannot be read, or the extractor does not take it.
    """
    for each in batches(pictures, batch):
        try:
            layers = extractor(each.images)
        except ValueError as error:
            name = each.pictures[0].name
            raise PipelineError(f"{name}: {extractor.name} does not take these images: {error}") from error
        hashes = np.array([key_hash(picture.key) for picture in each.pictures], np.uint64)
        labels = np.array([-1 if picture.label is None else picture.label for picture in each.pictures], np.int64)
        yield Features({name: values.numpy() for name, values in layers.items()}, hashes, labels, each.facts)


def key_hash(key: str) -> int:
    """A number below 2⁶⁴ that is as good as chance, and always the same for a key."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
