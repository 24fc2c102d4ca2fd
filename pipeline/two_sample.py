"""Whether two sets of feature vectors are of one law: their distance against the distances of random splits of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.moments import QUICK_ROUNDING, Moments, quick_frechet

SEED = 0


@dataclass(frozen=True)
class Band:
    """A distance and those of random splits, rising.

    Attributes:
        distance: the Fréchet distance between the two sets.
        splits: distances between the halves of random splits of the same images, float64 [splits].
        rounding: differences between distances that mean nothing, as between a set and itself.
    """

    distance: float
    splits: NDArray[np.float64]
    rounding: float

    @property
    def p_value(self) -> float:
        """Of one law: how often a random split is at least as far apart, this one counted among them."""
        return float((1 + (self.splits >= self.distance - self.rounding).sum()) / (1 + len(self.splits)))

    @property
    def level(self) -> float:
        """How often `same` is wrong about two sets of one law: the largest of splits + 1 that are alike."""
        return 1 / (1 + len(self.splits))

    @property
    def same(self) -> bool:
        """Whether the sets are no further apart than the furthest split."""
        return self.p_value > self.level


def unpaired_band(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    strata_a: NDArray[np.int64],
    strata_b: NDArray[np.int64],
    splits: int,
) -> Band:
    """Of independent sets: images change sides at random, within their stratum (class) so that both keep its share.

    Features a [rows, dimensions], b [rows, dimensions]; strata [rows]. Under one law all ways to divide the images are
    alike, so that the false-alarm rate is `level` exactly, whatever the law.
    """
    both = np.concatenate([a, b])
    strata = np.concatenate([strata_a, strata_b])
    groups = [np.flatnonzero(strata == each) for each in np.unique(strata)]

    def divided(chance: np.random.Generator) -> NDArray[np.bool_]:
        in_a = np.zeros(len(both), bool)
        for group in groups:
            share = int((group < len(a)).sum())
            in_a[chance.permutation(group)[:share]] = True
        return in_a

    return _band(both, len(a), divided, splits)


def paired_band(a: NDArray[np.float32], b: NDArray[np.float32], splits: int) -> Band:
    """Of sets with the same seeds, row by row: the two of a pair change sides at random.

    Images of one seed are alike, so that the sets are closer together than independent ones, and so are these splits:
    what both have in common hides no difference. The distance is a function of sums over pairs whose terms have mean 0
    under one law, and a random sign leaves their variance as it is; so the false-alarm rate tends to `level` as the
    number of pairs grows, and is `level` exactly where (a, b) and (b, a) have one law.
    """

    def divided(chance: np.random.Generator) -> NDArray[np.bool_]:
        swapped = chance.integers(2, size=len(a)).astype(bool)
        return np.concatenate([~swapped, swapped])

    return _band(np.concatenate([a, b]), len(a), divided, splits)


def _band(
    both: NDArray[np.float32],
    count: int,
    divided: Callable[[np.random.Generator], NDArray[np.bool_]],
    splits: int,
) -> Band:
    """Of the first `count` rows against the others, and of so many random divisions, each given by who is in A."""
    # Features far from 0 would lose digits of their covariance in the subtraction below.
    centred = both - both.mean(axis=0, dtype=np.float64)
    total = Moments.of(centred)

    def distance(in_a: NDArray[np.bool_]) -> float:
        a = Moments.of(centred[in_a])
        b = Moments(total.count - a.count, total.total - a.total, total.outer - a.outer)
        return quick_frechet(a.gaussian(), b.gaussian())

    chance = np.random.default_rng(SEED)
    found = sorted(distance(divided(chance)) for _ in range(splits))
    rounding = QUICK_ROUNDING * float(np.trace(total.covariance()))
    return Band(distance(np.arange(len(both)) < count), np.array(found), rounding)
