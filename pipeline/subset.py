"""The images of a set whose keys hash lowest: a sample as good as chance, whatever order and parts they come in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMIT = 10_000


class Subset:
    """Holds at most twice the limit of feature vectors, however many are added."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._held: list[tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.int64]]] = []
        self._count = 0

    def add(self, hashes: NDArray[np.uint64], features: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        """Hashes [rows], features [rows, dimensions], labels [rows]."""
        self._held.append((hashes, features, labels))
        self._count += len(hashes)
        if self._count > 2 * self._limit:
            self._reduce()

    def lowest(self) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.int64]]:
        """Hashes, features and labels of the chosen images, by hash: in an order as good as chance."""
        self._reduce()
        return self._held[0]

    def _reduce(self) -> None:
        hashes, features, labels = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        order = np.argsort(hashes, kind="stable")[: self._limit]
        self._held = [(hashes[order], features[order], labels[order])]
        self._count = len(order)
