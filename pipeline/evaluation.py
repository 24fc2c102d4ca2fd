"""FID of a data set: the features of its committed images against a reference's mean and covariance."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

from pipeline.commits import CommitRecord, committed
from pipeline.damage import reading
from pipeline.decoding import decode
from pipeline.encoding import LOSSLESS
from pipeline.errors import PipelineError, UsageError
from pipeline.extractors import Extractor, check_extractor, load_extractor
from pipeline.spec import EvaluateSpec, Job
from pipeline.storage import Storage
from specdiff.targets.fashion_mnist.classifier import REFERENCE

REGISTERED_REFERENCES = {"fashion-mnist": REFERENCE}
BATCH = 64


@dataclass(frozen=True)
class Moments:
    """Sums over feature vectors, from which mean and covariance follow. Those of two files add up to those of both."""

    count: int
    total: NDArray[np.float64]  # Σ f, [dimensions]
    outer: NDArray[np.float64]  # Σ f fᵀ, [dimensions, dimensions]

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Of features [rows, dimensions], summed in float64 whatever their type."""
        f = features.double().numpy()
        return cls(len(f), f.sum(axis=0), f.T @ f)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    def mean(self) -> NDArray[np.float64]:
        return self.total / self.count

    def covariance(self) -> NDArray[np.float64]:
        """The unbiased one, which needs two vectors."""
        mean = self.mean()
        return (self.outer - self.count * np.outer(mean, mean)) / (self.count - 1)


@dataclass(frozen=True)
class Reference:
    """Statistics that a data set is scored against."""

    name: str
    mu: NDArray[np.float64]  # [dimensions]
    sigma: NDArray[np.float64]  # [dimensions, dimensions]
    count: int | None  # images it was computed from, where the file says
    extractor: str | None  # what computed it, where the file says


def evaluate(storage: Storage, job: Job, partial: bool, threads: int, device: str) -> dict[str, dict[str, Any]]:
    """Score the committed images of a data set.

    Args:
        storage: the data set's folder.
        job: says what to compute, in ``job.evaluate``; nothing is computed without it.
        partial: score what there is, though rows are missing.
        threads: CPU threads for torch.
        device: where the extractor runs, as torch names it.

    Returns:
        For each metric its value and conditions: ``{"fid": {"value", "count", "extractor", "reference",
        "reference_count", "notes"}}``.

    Raises:
        UsageError: the extractor, its weights' file or the reference is not what it should be.
        PipelineError: rows are missing (without ``partial``), there are fewer than two images, one cannot be read, or
            the extractor's weights cannot be had.
        Unavailable: the storage is out of reach.
    """
    if job.evaluate is None:
        return {}
    records = committed(storage)
    missing = missing_rows(storage, records)
    if missing and not (partial or job.evaluate.partial):
        raise PipelineError(
            f"{storage.uri}: {missing} rows have no image yet, and a part is not scored as if it were the whole set. "
            "Finish it with `specdiff run`, or score what there is with `specdiff evaluate --partial`."
        )
    torch.set_num_threads(threads)
    reference = load_reference(job.evaluate.reference, job.evaluate.extractor)
    extractor = load_extractor(job.evaluate.extractor, job.evaluate.weights, device)
    count = sum(record.written for record in records)
    if count < 2:
        raise PipelineError(f"{storage.uri}: FID needs two images at least, and there are {count}.")
    moments = reduce(add, (moments_of_file(storage, record, extractor) for record in records if record.written))
    notes = [f"partial: {missing} rows have no image"] if missing else []
    if job.output.image_format not in LOSSLESS:
        notes.append(
            f"{job.output.image_format} loses detail: that counts as distance, unless the reference lost it too"
        )
    return {"fid": fid(moments, reference, extractor.name, notes)}


def check_evaluation(settings: EvaluateSpec) -> None:
    """Refuse, before anything is generated, what could not be evaluated afterwards.

    Raises:
        UsageError: an unknown extractor, a file that is not there, or a reference that is not what it should be.
        Unavailable: the reference's storage is out of reach.
    """
    check_extractor(settings.extractor, settings.weights)
    load_reference(settings.reference, settings.extractor)


def missing_rows(storage: Storage, records: Sequence[CommitRecord]) -> int:
    """How many rows of the manifest, those skipped as bad apart, have no committed image."""
    rows = 0
    for path in storage.list("manifest/"):
        with storage.open(path) as handle, reading(storage, path):
            rows += pq.read_metadata(handle).num_rows
    return rows - sum(record.written + record.skipped for record in records)


def fid(moments: Moments, reference: Reference, extractor: str, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The Fréchet distance, as torch-fidelity computes it, with its conditions.

    Raises:
        UsageError: the reference has another number of dimensions.
    """
    dimensions = len(moments.total)
    if reference.mu.shape != (dimensions,):
        raise UsageError(
            f"evaluate.reference: {reference.name} has {len(reference.mu)} dimensions, and {extractor} computes "
            f"{dimensions} features. Name statistics that the same extractor made."
        )
    if moments.count <= dimensions:
        notes = [*notes, f"{moments.count} images for {dimensions} features: too few to judge the set by"]
    score = fid_statistics_to_metric(
        {"mu": moments.mean(), "sigma": moments.covariance()},
        {"mu": reference.mu, "sigma": reference.sigma},
        verbose=False,
    )
    return {
        "value": score[KEY_METRIC_FID],
        "count": moments.count,
        "extractor": extractor,
        "reference": reference.name,
        "reference_count": reference.count,
        "notes": list(notes),
    }


def load_reference(name: str, extractor: str) -> Reference:
    """Read reference statistics.

    Args:
        name: a registered name, or an npz file with ``mu`` and ``sigma`` (local or ``s3://``).
        extractor: what the data set's features are computed by.

    Raises:
        UsageError: there is no such file, it holds something else, or another extractor made it.
        Unavailable: its storage is out of reach.
    """
    path = str(REGISTERED_REFERENCES.get(name, name))
    if not path.endswith(".npz"):
        raise UsageError(
            f"evaluate.reference: {name} is neither a registered reference ({', '.join(REGISTERED_REFERENCES)}) "
            "nor an npz file; folders and Parquet are not built yet."
        )
    folder, file = os.path.split(path)
    try:
        with np.load(io.BytesIO(Storage(folder or ".").read(file)), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in ("mu", "sigma", "count", "extractor") if key in archive}
        mu, sigma = arrays["mu"].astype(np.float64), arrays["sigma"].astype(np.float64)
    except FileNotFoundError as error:
        raise UsageError(f"evaluate.reference: there is no file {path}.") from error
    except (ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(f"evaluate.reference: {name} is not an npz file with mu and sigma: {error}") from error
    if mu.ndim != 1 or sigma.shape != 2 * mu.shape or not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
        raise UsageError(
            f"evaluate.reference: {name}: mu {list(mu.shape)} and sigma {list(sigma.shape)} are not a finite mean [d] "
            "and covariance [d, d]."
        )
    made_by = str(arrays["extractor"]) if "extractor" in arrays else None
    if made_by is not None and made_by != extractor:
        raise UsageError(
            f"evaluate.reference: {name} was made by the extractor {made_by}, and evaluate.extractor is {extractor}."
        )
    return Reference(name, mu, sigma, int(arrays["count"]) if "count" in arrays else None, made_by)


def moments_of_file(storage: Storage, record: CommitRecord, extractor: Extractor, batch: int = BATCH) -> Moments:
    """Moments of the features of one committed file, of which a row group and a batch are held at a time.

    Raises:
        PipelineError: an image cannot be read, does not suit the extractor, or the record promises another number.
    """
    parts = []
    for images in images_of_file(storage, record.file, batch):
        try:
            parts.append(Moments.of(extractor(images)))
        except ValueError as error:
            raise PipelineError(f"{record.file}: {extractor.name} does not take these images: {error}") from error
    moments = reduce(add, parts)
    if moments.count != record.written:
        raise PipelineError(
            f"{record.file} has {moments.count} images where its record says {record.written}: "
            "`specdiff verify` tells what else is wrong."
        )
    return moments


def images_of_file(storage: Storage, path: str, batch: int) -> Iterator[Tensor]:
    """The images of one data file in order: uint8 [at most batch, 3, height, width].

    Raises:
        PipelineError: an image cannot be read, or differs in size from its neighbours.
    """
    with storage.open(path) as handle, reading(storage, path):
        for rows in pq.ParquetFile(handle).iter_batches(batch_size=batch, columns=["key", "image"]):
            images = [
                rgb(image["bytes"], f"{path}: {key}")
                for key, image in zip(rows["key"].to_pylist(), rows["image"].to_pylist(), strict=True)
            ]
            if len({image.shape for image in images}) > 1:
                raise PipelineError(f"{path}: images of different sizes, which one score cannot cover.")
            yield torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def rgb(data: bytes, name: str) -> NDArray[np.uint8]:
    """Decode an image file: uint8 [height, width, 3]. Grey becomes three equal channels.

    Raises:
        PipelineError: it cannot be read, or has transparency, a palette or more than 8 bits, for which there is no one
            right conversion.
    """
    image = decode(data, name)
    if image.mode not in ("L", "RGB"):
        raise PipelineError(f"{name}: a picture of mode {image.mode}; only 8-bit grey and RGB are scored.")
    return np.asarray(image.convert("RGB"))
