"""The Inception Score from sums over the images' class probabilities, split by split as torch-fidelity splits them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

SPLITS = 10
SEED = 2020  # torch-fidelity's
PERIOD = 1 << 20  # images after which the pattern of splits repeats, so that it is of bounded size


class ClassScores:
    """Sums for each split: images, Σ p, [classes], and Σ p·ln p."""

    def __init__(self, count: int) -> None:
        """`count`: of images that will be added; it decides which image belongs to which split."""
        self._count = count
        self._seen = 0
        self._images = np.zeros(SPLITS, np.int64)
        self._total: NDArray[np.float64] | None = None
        self._negentropy = np.zeros(SPLITS)

    def add(self, logits: NDArray[np.float32]) -> None:
        """The next images' class scores, [rows, classes]."""
        scores = torch.from_numpy(logits).double()
        p, log_p = scores.softmax(dim=1).numpy(), scores.log_softmax(dim=1).numpy()
        position = np.arange(self._seen, self._seen + len(p))
        split = splits_of(min(self._count, PERIOD))[position % PERIOD]
        if self._total is None:
            self._total = np.zeros((SPLITS, p.shape[1]))
        np.add.at(self._total, split, p)
        np.add.at(self._negentropy, split, (p * log_p).sum(axis=1))
        np.add.at(self._images, split, 1)
        self._seen += len(p)

    @property
    def classes(self) -> int:
        return 0 if self._total is None else self._total.shape[1]

    def score(self) -> tuple[float, float]:
        """Mean and standard deviation over the splits of exp(E KL(p ‖ E p)); every split needs an image."""
        assert self._total is not None
        images = self._images[:, None]
        q = self._total / images
        log_q = np.log(np.where(q > 0, q, 1))
        scores = np.exp((self._negentropy - (self._total * log_q).sum(axis=1)) / self._images)
        return float(scores.mean()), float(scores.std())


@lru_cache(maxsize=1)
def splits_of(count: int) -> NDArray[np.uint8]:
    """Which split each of so many images belongs to, uint8 [count], when torch-fidelity has shuffled them."""
    order = np.random.RandomState(SEED).permutation(count)
    split = np.empty(count, np.uint8)
    for i in range(SPLITS):
        split[order[i * count // SPLITS : (i + 1) * count // SPLITS]] = i
    return split
