"""What a data set is scored against: statistics of a reference, read from an npz file or made from its images."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.aggregate import Aggregate
from pipeline.errors import UsageError
from pipeline.extractors import Extractor
from pipeline.feature_store import FOLDER
from pipeline.features import extracted
from pipeline.moments import Gaussian
from pipeline.picture_sources import PictureSource, open_source
from pipeline.pictures import Facts
from pipeline.storage import Storage
from specdiff.targets.fashion_mnist.classifier import REFERENCE

REGISTERED = {"fashion-mnist": REFERENCE}
ROUNDING = 1e-4  # of the largest eigenvalue, for a covariance that was stored in float32
_SAID = ("extractor", "weights_sha256", "resize")


@dataclass(frozen=True)
class Reference:
    """Statistics that a data set is scored against; what their file does not say is None, or empty.

    Attributes:
        name: what the user calls it.
        gaussian: mean, covariance and count of all its images' features.
        extractor: what computed them; weights_sha256: with which weights; resize: how it resized the images.
        facts: what its images are like.
        features: float32 [at most 10,000, dimensions], of the images whose keys hash lowest, in that order.
        classes: each class's own mean, covariance and count.
    """

    name: str
    gaussian: Gaussian
    extractor: str | None = None
    weights_sha256: str | None = None
    resize: str | None = None
    facts: Facts | None = None
    features: NDArray[np.float32] | None = None
    classes: dict[int, Gaussian] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """An npz file: `mu` and `sigma` as EDM and pytorch-fid have them, and beside them what else there is."""
        facts = self.facts
        said: dict[str, Any] = {each: getattr(self, each) for each in _SAID}
        if facts is not None:
            said["facts"] = {"width": facts.width, "height": facts.height, "formats": facts.formats}
        arrays: dict[str, Any] = {
            "mu": self.gaussian.mu,
            "sigma": self.gaussian.sigma,
            "said": np.array(json.dumps(said)),
            "class_labels": np.array(list(self.classes), np.int64),
        }
        if self.gaussian.count is not None:
            arrays["count"] = np.array(self.gaussian.count)
        if self.features is not None:
            arrays["features"] = self.features
        if self.classes:
            arrays["class_counts"] = np.array([each.count for each in self.classes.values()])
            arrays["class_mu"] = np.stack([each.mu for each in self.classes.values()])
            arrays["class_sigma"] = np.stack([each.sigma for each in self.classes.values()])
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Reference:
        """Any npz file with `mu` and `sigma`. Raises UsageError for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                gaussian = _gaussian(archive)
                said = json.loads(str(archive["said"])) if "said" in archive else {}
                features = archive.get("features")
                classes = {}
                if "class_mu" in archive:
                    names = ("class_labels", "class_counts", "class_mu", "class_sigma")
                    for label, count, mu, sigma in zip(*(archive[each] for each in names), strict=True):
                        classes[int(label)] = Gaussian(int(count), mu, sigma)
            facts = said.get("facts")
            if facts is not None:
                width, height = ((int(low), int(high)) for low, high in (facts["width"], facts["height"]))
                facts = Facts(gaussian.count or 0, width, height, Counter(facts["formats"]))
            reference = cls(name, gaussian, facts=facts, features=features, classes=classes)
            words: dict[str, Any] = {each: said.get(each) for each in _SAID}
            reference = replace(reference, **words)
        except (ValueError, TypeError, KeyError, AttributeError, zipfile.BadZipFile) as error:
            raise UsageError(f"evaluate.reference: {name} is not an npz file with mu and sigma: {error}") from error
        mu, sigma = gaussian.mu, gaussian.sigma
        if mu.ndim != 1 or sigma.shape != 2 * mu.shape or not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
            raise UsageError(
                f"evaluate.reference: {name}: mu {list(mu.shape)} and sigma {list(sigma.shape)} are not a finite mean "
                "[d] and covariance [d, d]."
            )
        lowest, highest = np.linalg.eigvalsh((sigma + sigma.T) / 2)[[0, -1]]
        if np.abs(sigma - sigma.T).max() > ROUNDING * highest or lowest < -ROUNDING * highest:
            raise UsageError(
                f"evaluate.reference: {name}: sigma is no covariance, which is symmetric and has no negative "
                f"eigenvalue; its least one is {lowest:.3g}"
            )
        return reference


def _gaussian(archive: np.lib.npyio.NpzFile) -> Gaussian:
    count = int(archive["count"]) if "count" in archive else None
    return Gaussian(count, archive["mu"].astype(np.float64), archive["sigma"].astype(np.float64))


def check_reference(name: str, extractor: str, weights_sha256: str | None, metrics: Iterable[str]) -> None:
    """Refuse, without computing features, what could not be scored against.

    Raises:
        UsageError: there is nothing of the kind, another extractor made it, or it lacks what a metric needs.
        Unavailable: its storage is out of reach.
    """
    if not _is_statistics(name):
        open_source(name)
        return
    check_fit(read_statistics(name), extractor, weights_sha256, metrics)


def check_fit(reference: Reference, extractor: str, weights_sha256: str | None, metrics: Iterable[str]) -> None:
    """Raises UsageError where another extractor made the statistics, or they lack what a metric needs."""
    name = reference.name
    if reference.extractor is not None and reference.extractor != extractor:
        raise UsageError(
            f"evaluate.reference: {name} was made by the extractor {reference.extractor}, and evaluate.extractor is "
            f"{extractor}."
        )
    if None not in (reference.weights_sha256, weights_sha256) and reference.weights_sha256 != weights_sha256:
        raise UsageError(
            f"evaluate.reference: {name} was made with other weights of {extractor} (sha256 "
            f"{str(reference.weights_sha256)[:16]}…, here {str(weights_sha256)[:16]}…). Make it anew: `specdiff stats`."
        )
    lacking = [metric for metric in metrics if metric in ("kid", "precision_recall") and reference.features is None]
    if lacking:
        raise UsageError(
            f"evaluate.metrics: {lacking[0]} needs features of the reference's images, and {name} has only their mean "
            "and covariance. Name the images themselves, or what `specdiff stats` makes of them."
        )


def check_dimensions(reference: Reference, dimensions: int, extractor: Extractor) -> None:
    """Raises UsageError where the statistics are of another number of features than the extractor computes."""
    if reference.gaussian.dimensions != dimensions:
        raise UsageError(
            f"evaluate.reference: {reference.name} has {reference.gaussian.dimensions} dimensions, and "
            f"{extractor.name} computes {dimensions} features. Name statistics that the same extractor made."
        )


def load_reference(name: str, extractor: Extractor, metrics: Iterable[str], cache: Storage | None = None) -> Reference:
    """The statistics that a name stands for.

    Args:
        name: a registered name, an npz file with ``mu`` and ``sigma``, a Parquet file, or a folder of images, of
            Parquet or with a data set of ours; local or ``s3://``.
        extractor: what the data set's features are computed by, and those of the reference's images.
        cache: where the statistics of images are kept, so that they are computed once.

    Raises:
        UsageError: there is nothing of the kind, it holds something else, or another extractor made it.
        PipelineError: an image cannot be read or is not scored.
        Unavailable: its storage is out of reach.
    """
    if not _is_statistics(name):
        return _from_images(open_source(name), extractor, cache)
    reference = read_statistics(name)
    check_fit(reference, extractor.name, extractor.weights_sha256, metrics)
    return reference


def _is_statistics(name: str) -> bool:
    return name in REGISTERED or name.endswith(".npz")


def read_statistics(name: str) -> Reference:
    """Of an npz file or a registered name. Raises UsageError, Unavailable."""
    path = str(REGISTERED.get(name, name))
    folder, file = os.path.split(path)
    try:
        return Reference.from_bytes(Storage(folder or ".").read(file), name)
    except FileNotFoundError as error:
        raise UsageError(f"evaluate.reference: there is no file {path}.") from error


def _from_images(source: PictureSource, extractor: Extractor, cache: Storage | None) -> Reference:
    if cache is None:
        return make_reference(source, extractor)
    path = f"{FOLDER}reference-{source.digest()[:32]}-{extractor.name}-{extractor.weights_sha256[:16]}.npz"
    try:
        return Reference.from_bytes(cache.read(path), source.name)
    except (FileNotFoundError, UsageError):  # not there, or damaged
        reference = make_reference(source, extractor)
    cache.replace(path, reference.to_bytes())
    return reference


def make_reference(source: PictureSource, extractor: Extractor) -> Reference:
    """Statistics of images, of which a batch is held at a time.

    Raises:
        UsageError: there are fewer than two.
        PipelineError: one cannot be read, or is of a kind that is not scored.
        Unavailable: their storage is out of reach.
    """
    aggregate = Aggregate(extractor)
    for batch in extracted(source, extractor):
        aggregate.add(batch)
    if aggregate.moments is None or aggregate.count < 2:
        raise UsageError(f"evaluate.reference: {source.name} has {aggregate.count} images, and two are the fewest.")
    _, features, _ = aggregate.subset.lowest()
    return Reference(
        source.name,
        aggregate.moments.gaussian(),
        extractor.name,
        extractor.weights_sha256,
        extractor.resize,
        aggregate.facts,
        features,
        {label: moments.gaussian() for label, moments in sorted(aggregate.classes.items()) if moments.count > 1},
    )
