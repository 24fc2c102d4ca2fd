"""The metrics of a set, each with the conditions under which its number means something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric
from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

from pipeline.aggregate import Aggregate
from pipeline.class_scores import SPLITS
from pipeline.errors import PipelineError
from pipeline.extractors import Extractor
from pipeline.moments import Moments, frechet, quick_frechet, without_rounding
from pipeline.pictures import Facts
from pipeline.references import Reference, check_dimensions

KID_SUBSET = 1000  # torch-fidelity's; fewer where a side has fewer
NEIGHBOURS = 3  # torch-fidelity's, of precision and recall
PRC_ROWS = 1000  # whose distances to all others are held at a time
LOSSY = "JPEG"

Metrics = dict[str, dict[str, Any]]


def score(
    names: Iterable[str], aggregate: Aggregate, reference: Reference, extractor: Extractor, warnings: list[str]
) -> Metrics:
    """Compute metrics.

    Args:
        names: ``fid``, ``inception_score``, ``kid``, ``precision_recall``.
        aggregate: of the set.
        warnings: what is to be known about the set, whatever the metric.

    Returns:
        For each of ``fid``, ``inception_score``, ``kid``, ``precision``, ``recall``: ``value``, ``count``,
        ``extractor``, ``reference``, ``reference_count`` (None where its file does not say, 0 where there is none),
        ``noise_floor`` (None where it cannot be told), ``warnings``, and ``images`` and ``reference_images``, what
        both sides are like. ``fid`` has ``per_class`` where the counts allow it, ``kid`` and ``inception_score`` a
        ``std``.

    Raises:
        PipelineError: there are too few images for a metric.
        UsageError: the reference has another number of dimensions.
    """
    if aggregate.count < 2 or aggregate.moments is None:
        raise PipelineError(f"a set is scored by two images at least, and there are {aggregate.count}.")
    check_dimensions(reference, len(aggregate.moments.total), extractor)
    conditions = {
        "count": aggregate.count,
        "extractor": extractor.name,
        "images": _described(aggregate.facts, extractor.resize),
    }
    compared = {
        **conditions,
        "reference": reference.name,
        "reference_count": reference.gaussian.count,
        "reference_images": _described(reference.facts, reference.resize),
    }
    mismatched = mismatches(aggregate.facts, reference, extractor)
    found: Metrics = {}
    for name in dict.fromkeys(names):
        if name == "inception_score":
            values = inception_score(aggregate)
            values["warnings"] = [*warnings, *values["warnings"]]
            found[name] = {**conditions, "reference": "", "reference_count": 0, "noise_floor": None, **values}
            continue
        for part, values in _COMPARISONS[name](aggregate, reference).items():
            values["warnings"] = [*warnings, *mismatched, *values["warnings"]]
            found[part] = {**compared, **values}
    return found


def mismatches(facts: Facts | None, reference: Reference, extractor: Extractor) -> list[str]:
    """In which ways the images of the two sides are not alike, other than by what they show."""
    assert facts is not None
    other = reference.facts
    found = []
    if facts.width[0] != facts.width[1] or facts.height[0] != facts.height[1]:
        found.append(f"the images are of several sizes, {facts.resolution}")
    lossy = facts.formats[LOSSY]
    if other is None:
        found.append(
            f"{reference.name} does not say of what size and format its images are; the set's are "
            f"{facts.resolution} {facts.told_formats}"
        )
        if lossy:
            found.append("JPEG loses detail: that counts as distance, unless the reference lost it too")
        return found
    if facts.resolution != other.resolution:
        found.append(f"the images are {facts.resolution}, those of {reference.name} {other.resolution}")
    if bool(lossy) != bool(other.formats[LOSSY]) or (lossy and set(facts.formats) != set(other.formats)):
        found.append(
            f"the images are {facts.told_formats}, those of {reference.name} {other.told_formats}: JPEG loses detail, "
            "and that counts as distance"
        )
    if reference.resize != extractor.resize:
        found.append(f"the images were resized {extractor.resize}, those of {reference.name} {reference.resize}")
    return found


def fid(aggregate: Aggregate, reference: Reference) -> Metrics:
    """The Fréchet distance of all images, and of each class that has more images than there are dimensions."""
    assert aggregate.moments is not None
    ours, theirs = aggregate.moments.gaussian(), reference.gaussian
    warnings = [
        f"{count} {whose} for {ours.dimensions} features: too few to judge the set by"
        for count, whose in ((ours.count, "images"), (theirs.count, "images of the reference"))
        if count is not None and count <= ours.dimensions
    ]
    per_class = {
        str(label): without_rounding(frechet(moments.gaussian(), reference.classes[label]), reference.classes[label])
        for label, moments in sorted(aggregate.classes.items())
        if label in reference.classes and min(moments.count, reference.classes[label].count or 0) > ours.dimensions
    }
    value = without_rounding(frechet(ours, theirs), theirs)
    metric: dict[str, Any] = {"value": value, "noise_floor": None, "warnings": warnings, "per_class": per_class}
    if halves := _halves(reference, aggregate.count):
        a, b = (Moments.of(half).gaussian() for half in halves)
        metric |= {"noise_floor": without_rounding(quick_frechet(a, b), b), "noise_floor_counts": [a.count, b.count]}
    return {"fid": metric}


def kid(aggregate: Aggregate, reference: Reference) -> Metrics:
    """torch-fidelity's polynomial MMD² over random subsets, of the features of at most 10,000 images on each side."""
    ours, theirs = _samples(aggregate, reference)
    value, std, size = _mmd(ours, theirs)
    warnings = [] if size == KID_SUBSET else [f"over subsets of {size} images, where {KID_SUBSET} are usual"]
    metric: dict[str, Any] = {"value": value, "std": std, "subset_size": size, "warnings": warnings}
    metric["noise_floor"] = None
    if halves := _halves(reference, len(ours)):
        metric |= {"noise_floor": _mmd(*halves)[0], "noise_floor_counts": [len(half) for half in halves]}
    return {"kid": {**metric, "count": len(ours), "reference_count": len(theirs)}}


def precision_recall(aggregate: Aggregate, reference: Reference) -> Metrics:
    """Shares of images within the other side's neighbourhoods, of at most 10,000 images on each side.

    Their `noise_floor` is what one half of the reference reaches against the other: no set can do much better.
    """
    ours, theirs = _samples(aggregate, reference)
    fewest = min(len(ours), len(theirs))
    if fewest <= NEIGHBOURS:
        raise PipelineError(f"precision and recall need {NEIGHBOURS + 1} images on each side, and there are {fewest}.")
    values = _shares(ours, theirs)
    halves = _halves(reference, len(ours))
    floors = _shares(*halves) if halves and len(halves[0]) > NEIGHBOURS else (None, None)
    counts = {"count": len(ours), "reference_count": len(theirs), "neighbours": NEIGHBOURS}
    return {
        name: {"value": value, "noise_floor": floor, "warnings": [], **counts}
        for name, value, floor in zip(("precision", "recall"), values, floors, strict=True)
    }


_COMPARISONS: Mapping[str, Callable[[Aggregate, Reference], Metrics]] = {
    "fid": fid,
    "kid": kid,
    "precision_recall": precision_recall,
}


def inception_score(aggregate: Aggregate) -> dict[str, Any]:
    """torch-fidelity's, over the splits that it would make of the images in their order."""
    assert aggregate.scores is not None
    if aggregate.count < SPLITS:
        raise PipelineError(f"the Inception Score needs {SPLITS} images, one a split, and there are {aggregate.count}.")
    value, std = aggregate.scores.score()
    images, classes = aggregate.count // SPLITS, aggregate.scores.classes
    warnings = [f"{images} images a split for {classes} classes: too few to judge the set by"]
    return {"value": value, "std": std, "splits": SPLITS, "warnings": warnings if images < classes else []}


def _samples(aggregate: Aggregate, reference: Reference) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    assert reference.features is not None
    _, features, _ = aggregate.subset.lowest()
    return features, reference.features


def _halves(reference: Reference, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Of the reference's sample: as many images of one half as are scored, if it has them, and the other half."""
    if reference.features is None or len(reference.features) < 4:
        return None
    half = len(reference.features) // 2
    return reference.features[: min(count, half)], reference.features[half:]


def _mmd(a: NDArray[np.float32], b: NDArray[np.float32]) -> tuple[float, float, int]:
    """Mean and standard deviation over subsets, and their size."""
    size = min(KID_SUBSET, len(a), len(b))
    found = kid_features_to_metric(torch.from_numpy(a), torch.from_numpy(b), kid_subset_size=size, verbose=False)
    return found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD], size


def _shares(a: NDArray[np.float32], b: NDArray[np.float32]) -> tuple[float, float]:
    options = {"prc_neighborhood": NEIGHBOURS, "prc_batch_size": PRC_ROWS, "save_cpu_ram": True, "verbose": False}
    found = prc_features_to_metric(torch.from_numpy(a), torch.from_numpy(b), **options)
    return found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]


def _described(facts: Facts | None, resize: str | None) -> dict[str, Any] | None:
    return None if facts is None else {"resolution": facts.resolution, "formats": facts.told_formats, "resize": resize}
