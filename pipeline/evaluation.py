"""Scores of a data set: the features of its committed images against a reference's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pipeline.aggregate import Aggregate
from pipeline.commits import CommitRecord, stream_committed
from pipeline.errors import PipelineError, UsageError
from pipeline.extraction import extract
from pipeline.extractors import Extractor, check_extractor, known_weights_sha256, load_extractor
from pipeline.feature_store import (
    FOLDER,
    check_file,
    compute_features,
    entry_paths,
    store_features,
    stored_features,
)
from pipeline.features import Features
from pipeline.manifest_store import read_index
from pipeline.metrics import Metrics, score
from pipeline.references import check_reference, load_reference
from pipeline.spec import EvaluateSpec, Job
from pipeline.storage import Storage

PLAIN_IMAGES = 5000  # up to which features are computed right here, which spares Ray's start-up


def evaluate(storage: Storage, job: Job, partial: bool, threads: int, device: str) -> Metrics:
    """Score the committed images of a data set, and keep the features of what was not scored before.

    Args:
        storage: the data set's folder.
        job: says what to compute, in ``job.evaluate``; nothing is computed without it.
        partial: score what there is, though rows are missing.
        threads: CPU threads for torch.
        device: where the extractor runs if it runs here, as torch names it.

    Returns:
        For each metric its value and conditions (`metrics.score`).

    Raises:
        UsageError: the extractor, its weights' file or the reference is not what it should be.
        PipelineError: rows are missing (without ``partial``), there are too few images, one cannot be read, or the
            extractor's weights cannot be had.
        Unavailable: the storage or the cluster is out of reach.
    """
    settings = job.evaluate
    if settings is None:
        return {}
    count, missing = count_images(storage)
    if missing and not (partial or settings.partial):
        raise PipelineError(
            f"{storage.uri}: {missing} rows have no image yet, and a part is not scored as if it were the whole set. "
            "Finish it with `specdiff run`, or score what there is with `specdiff evaluate --partial`."
        )
    if count < 2:
        raise PipelineError(f"{storage.uri}: a set is scored by two images at least, and there are {count}.")
    torch.set_num_threads(threads)
    extractor = load_extractor(settings.extractor, settings.weights, device, "inception_score" in settings.metrics)
    reference = load_reference(settings.reference, extractor, settings.metrics, storage)
    fresh = _extract_if_many(storage, extractor, settings, job)
    aggregate = Aggregate(extractor, count)
    for record in stream_committed(storage):
        if record.written:
            aggregate.add(features_of(storage, record, extractor, fresh=record.path in fresh))
    warnings = [f"partial: {missing} rows have no image"] if missing else []
    return score(settings.metrics, aggregate, reference, extractor, warnings)


def check_evaluation(settings: EvaluateSpec) -> None:
    """Refuse, before anything is generated, what could not be evaluated afterwards.

    Raises:
        UsageError: an unknown extractor, a file that is not there, or a reference that is not what it should be.
        Unavailable: the reference's storage is out of reach.
    """
    check_extractor(settings.extractor, settings.weights, "inception_score" in settings.metrics)
    weights = known_weights_sha256(settings.extractor, settings.weights)
    check_reference(settings.reference, settings.extractor, weights, settings.metrics)


def count_images(storage: Storage) -> tuple[int, int]:
    """How many images are committed, and how many rows of the manifest, those skipped as bad apart, have none.

    Raises:
        UsageError: there is no manifest.
    """
    index = read_index(storage)
    if index is None:
        raise UsageError(f"{storage.uri}: holds no manifest, without which it cannot be told whether it is whole")
    written = skipped = 0
    for record in stream_committed(storage):
        written += record.written
        skipped += record.skipped
    return written, index.rows - written - skipped


def features_of(storage: Storage, record: CommitRecord, extractor: Extractor, fresh: bool = False) -> Features:
    """Features of one data file: those that are kept, or new ones, which are then kept.

    Args:
        fresh: they were computed just now, and the file was looked at then.

    Raises:
        PipelineError: the file is not what was committed, or an image cannot be read or is not scored.
    """
    if not fresh:
        check_file(storage, record)
    features = stored_features(storage, record, extractor)
    if features is None:
        features = compute_features(storage, record, extractor)
        store_features(storage, record, extractor, features)
    return features


def _extract_if_many(storage: Storage, extractor: Extractor, settings: EvaluateSpec, job: Job) -> set[str]:
    """Computes what is lacking by Ray Data where that is much. Returns for which records, by their paths."""
    there = set(storage.list(FOLDER))

    def lacking() -> Iterator[CommitRecord]:
        for record in stream_committed(storage):
            if record.written and there.isdisjoint(entry_paths(record, extractor)):
                yield record

    if sum(record.written for record in lacking()) <= PLAIN_IMAGES:
        return set()
    done = set()

    def noted() -> Iterator[CommitRecord]:
        for record in lacking():
            done.add(record.path)
            yield record

    extract(storage, noted(), settings, job.workers)
    return done
