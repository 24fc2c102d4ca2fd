"""What all metrics need of a set, gathered from its features part by part in memory that does not grow with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.class_scores import ClassScores
from pipeline.extractors import Extractor
from pipeline.features import Features
from pipeline.moments import Moments
from pipeline.pictures import Facts
from pipeline.subset import Subset

CLASS_BYTES = 512 << 20  # for the sums of all classes together; beyond it classes are not told apart


class Aggregate:
    """Sums over a set's features.

    Attributes:
        facts: what the images are like; None before the first.
        moments: of all images; None before the first.
        classes: of each class's images; empty where there are no labels, or too many classes for their size.
        subset: a sample of the features.
        scores: of the class scores, where they were asked for.
    """

    def __init__(self, extractor: Extractor, count: int | None = None) -> None:
        """`count`: of images to come; needed where the extractor gives class scores."""
        self.facts: Facts | None = None
        self.moments: Moments | None = None
        self.classes: dict[int, Moments] = {}
        self.subset = Subset()
        self.scores = None if extractor.score_layer is None or count is None else ClassScores(count)
        self._extractor = extractor
        self._tell_apart = True

    @property
    def count(self) -> int:
        return 0 if self.facts is None else self.facts.count

    def add(self, features: Features) -> None:
        vectors = features.layers[self._extractor.feature_layer]
        moments = Moments.of(vectors)
        self.moments = moments if self.moments is None else self.moments + moments
        self.facts = features.facts if self.facts is None else self.facts + features.facts
        self.subset.add(features.hashes, vectors, features.labels)
        if self.scores is not None and self._extractor.score_layer is not None:
            self.scores.add(features.layers[self._extractor.score_layer])
        if self._tell_apart:
            self._add_classes(vectors, features.labels)

    def _add_classes(self, vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        for label in np.unique(labels[labels >= 0]).tolist():
            moments = Moments.of(vectors[labels == label])
            self.classes[label] = self.classes[label] + moments if label in self.classes else moments
            if len(self.classes) * moments.outer.nbytes > CLASS_BYTES:
                self.classes, self._tell_apart = {}, False
                return
