"""`specdiff compare`: two data sets side by side, and whether they are of one law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from pipeline.commits import CommitRecord, stream_committed
from pipeline.damage import reading
from pipeline.errors import PipelineError, UsageError
from pipeline.extractors import Extractor, load_extractor
from pipeline.feature_store import check_file, compute_features, stored_features
from pipeline.features import key_hash
from pipeline.moments import Moments, without_rounding
from pipeline.output import read_job
from pipeline.pictures import Facts, rgb
from pipeline.report import read_report
from pipeline.spec import EvaluateSpec, Job
from pipeline.storage import Storage
from pipeline.subset import Subset
from pipeline.two_sample import Band, paired_band, unpaired_band

PAIRS = 512  # whose pixels are compared
SHARED = 0.9  # of the images that must have a partner of the same key and seed for the sets to be compared in pairs


@dataclass(frozen=True)
class Pairs:
    """Images of the same key and seed in both sets.

    Attributes:
        count: of pairs among the images that are compared; equal: those whose pixels are the same.
        distance: mean absolute difference of pixels, in grey levels of 256, over `looked_at` of them; None if sizes
            differ or there are no pairs.
    """

    count: int
    equal: int
    looked_at: int
    distance: float | None


@dataclass(frozen=True)
class Side:
    """One of the two sets: its job, the images of it that are compared, and what its report says."""

    storage: Storage
    job: Job
    count: int
    facts: Facts
    hashes: NDArray[np.uint64]
    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    report: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What came of it."""

    a: Side
    b: Side
    extractor: str
    band: Band
    pairs: Pairs
    in_pairs: bool
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return self.band.same

    def lines(self) -> Iterator[str]:
        band, pairs = self.band, self.pairs
        low, middle, high = np.quantile(band.splits, [0, 0.5, 1])
        scale = [Moments.of(side.features).gaussian() for side in (self.a, self.b)]
        for name, side in (("A", self.a), ("B", self.b)):
            sampler = side.job.sampler
            how = "sequential" if sampler.verification == "none" else f"{sampler.verification} + {sampler.drafter}"
            yield f"{name}           {side.storage.uri}: {side.count} images of {side.job.target.name}, {how}"
            yield f"            {_throughput(side.report)}"
        yield (
            f"FID         {without_rounding(band.distance, *scale):.4g} between {len(self.a.features)} and "
            f"{len(self.b.features)} images ({self.extractor} features)"
        )
        kind = "swaps within pairs of one seed" if self.in_pairs else "splits of all these images"
        yield f"noise band  {low:.4g} to {high:.4g}, median {middle:.4g}, by {len(band.splits)} random {kind}"
        if pairs.count:
            distance = (
                ""
                if pairs.distance is None
                else (f"; pixels differ by {pairs.distance:.3g} of 255 on average over {pairs.looked_at} of them")
            )
            yield f"pairs       {pairs.count} of the same key and seed, {pairs.equal} of them equal{distance}"
        else:
            yield "pairs       none: no key and seed is in both"
        yield from (f"note: {note}" for note in self.notes)
        yield (
            f"{'no difference found' if self.same else 'NOT ONE LAW'}: p = {band.p_value:.3g}; of sets of one law, "
            f"{100 * band.level:.3g} % are called different"
        )


def compare(a: str, b: str, extractor: str | None, weights: str | None, splits: int) -> Comparison:
    """Compare two data sets by at most 10,000 images of each. Nothing is written.

    Args:
        extractor, weights: None for those by which A's job is evaluated, or B's.
        splits: random splits of the noise band; the false-alarm rate is 1/(splits + 1).

    Raises:
        UsageError: there is no data set, or no extractor is named anywhere.
        PipelineError: there are too few images, or one cannot be read or is not scored.
        Unavailable: the storage is out of reach.
    """
    jobs = [read_job(Storage(uri))[0] for uri in (a, b)]
    settings = next((job.evaluate for job in jobs if job.evaluate is not None), None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = load_extractor(*_chosen(extractor, weights, settings), device)
    one, two = (_side(Storage(uri), job, network) for uri, job in zip((a, b), jobs, strict=True))
    notes = []
    if one.facts.resolution != two.facts.resolution or set(one.facts.formats) != set(two.facts.formats):
        notes.append(
            f"A's images are {one.facts.resolution} {one.facts.told_formats}, B's {two.facts.resolution} "
            f"{two.facts.told_formats}: that counts as distance"
        )
    pairs, places = _pairs(one, two)
    in_pairs = len(places) >= SHARED * max(len(one.hashes), len(two.hashes))
    if in_pairs:
        i, j = places.T
        band = paired_band(one.features[i], two.features[j], splits)
    else:
        classes = [dict(zip(*np.unique(side.labels, return_counts=True), strict=True)) for side in (one, two)]
        strata = one.labels, two.labels
        if classes[0].keys() != classes[1].keys():
            notes.append("the sets are not of the same classes: that counts as distance")
            strata = np.zeros_like(one.labels), np.zeros_like(two.labels)
        band = unpaired_band(one.features, two.features, *strata, splits)
    dimensions = one.features.shape[1]
    if min(len(one.features), len(two.features)) <= dimensions:
        notes.append(f"no more images than the {dimensions} features: only gross differences can be told")
    return Comparison(one, two, network.name, band, pairs, in_pairs, notes)


def _chosen(extractor: str | None, weights: str | None, settings: EvaluateSpec | None) -> tuple[str, str | None]:
    if extractor is not None:
        return extractor, weights
    if settings is None:
        raise UsageError("neither set's job has an `evaluate` section, so name the extractor: --extractor")
    return settings.extractor, weights or settings.weights


def _side(storage: Storage, job: Job, extractor: Extractor) -> Side:
    subset, count, facts = Subset(), 0, None
    for record in stream_committed(storage):
        if record.written:
            check_file(storage, record)
            features = stored_features(storage, record, extractor) or compute_features(storage, record, extractor)
            subset.add(features.hashes, features.layers[extractor.feature_layer], features.labels)
            count += record.written
            facts = features.facts if facts is None else facts + features.facts
    if facts is None or count < 2:
        raise PipelineError(f"{storage.uri}: a set is compared by two images at least, and there are {count}.")
    return Side(storage, job, count, facts, *subset.lowest(), read_report(storage))


@dataclass(frozen=True)
class _Row:
    """What of a compared image is looked up to find its partner; `place` among the compared ones."""

    place: int
    seed: int
    sha256: str
    record: CommitRecord
    row: int


def _pairs(a: Side, b: Side) -> tuple[Pairs, NDArray[np.int64]]:
    """The pairs, and their places in A and B, int64 [pairs, 2]."""
    ours, theirs = ({row.place: row for row in _rows(side)} for side in (a, b))
    _, i, j = np.intersect1d(a.hashes, b.hashes, return_indices=True)
    both = [(ours[x], theirs[y]) for x, y in zip(i.tolist(), j.tolist(), strict=True)]
    found = [(x, y) for x, y in both if x.seed == y.seed]
    equal = sum(x.sha256 == y.sha256 for x, y in found)
    looked_at = found[:PAIRS]  # by hash, and so at random
    pixels = [_pixels(side.storage, [pair[k] for pair in looked_at]) for k, side in enumerate((a, b))]
    differences = [np.abs(x.astype(np.float64) - y).mean() for x, y in zip(*pixels, strict=True) if x.shape == y.shape]
    distance = float(np.mean(differences)) if differences and len(differences) == len(looked_at) else None
    places = np.array([(x.place, y.place) for x, y in found], np.int64).reshape(-1, 2)
    return Pairs(len(found), equal, len(looked_at), distance), places


def _rows(side: Side) -> Iterator[_Row]:
    place_of = {key: place for place, key in enumerate(side.hashes.tolist())}
    for record in stream_committed(side.storage):
        if not record.written:
            continue
        with side.storage.open(record.file) as handle, reading(side.storage, record.file):
            table = pq.read_table(handle, columns=["key", "seed", "sha256"])
        columns = (table[name].to_pylist() for name in ("key", "seed", "sha256"))
        for row, (key, seed, sha256) in enumerate(zip(*columns, strict=True)):
            place = place_of.get(key_hash(key))
            if place is not None:
                yield _Row(place, seed, sha256, record, row)


def _pixels(storage: Storage, rows: Sequence[_Row]) -> list[NDArray[np.uint8]]:
    """The images of rows, uint8 [height, width, 3] each, in order; every data file is opened once."""
    found: dict[int, NDArray[np.uint8]] = {}
    for path in dict.fromkeys(row.record.file for row in rows):
        with storage.open(path) as handle, reading(storage, path):
            images = pq.read_table(handle, columns=["image"])["image"]
        for row in rows:
            if row.record.file == path:
                found[row.place], _ = rgb(images[row.row].as_py()["bytes"], f"{path}: row {row.row}")
    return [found[row.place] for row in rows]


def _throughput(report: dict[str, Any]) -> str:
    """Its last run, as its report tells it."""
    throughput, sampler = report.get("throughput", {}), report.get("sampler", {})
    told = []
    if throughput:
        workers = throughput["workers"]
        told.append(f"{throughput['images_per_s']:.3g} images/s by {workers} worker{'' if workers == 1 else 's'}")
    if sampler.get("samples"):
        told.append(f"sequential speed-up {sampler['sequential_speedup']:.3g}")
        told.append(f"{sampler['evaluations_per_image']:.4g} evaluations an image")
    return ", ".join(told) or "no report of a run"
