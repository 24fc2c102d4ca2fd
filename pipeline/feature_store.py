"""Features of committed data files, kept beside the report so that a later evaluation computes only what is new.

An entry is named after its data file, the file's digest, the extractor and its weights' digest, and says all of them in
full inside. The features themselves are kept, not their sums: for networks with more dimensions than a file has rows
they are smaller (Inception-v3, 256 rows: 2 MB against 34), and every metric follows from them.
"""

from __future__ import annotations

import re

import pyarrow.parquet as pq

from pipeline.commits import CommitRecord, stem
from pipeline.damage import reading
from pipeline.errors import PipelineError
from pipeline.extractors import Extractor
from pipeline.features import BATCH, Features, extracted
from pipeline.picture_sources import parquet_pictures
from pipeline.storage import Storage

FOLDER = "report/features/"
_SHORT = 16  # hex digits of a digest in a name
ENTRY = re.compile(r"report/features/(part-\d{5,}(?:\.r\d+)?-[0-9a-f]{16})-[a-z0-9-]+\.npz")


def entry_paths(record: CommitRecord, extractor: Extractor) -> list[str]:
    """Where features of a data file may be, best first: entries with class scores serve those who need none, too."""
    common = f"{FOLDER}{entry_prefix(record)}-{extractor.name}-{extractor.weights_sha256[:_SHORT]}"
    with_scores = f"{common}-scores.npz"
    return [with_scores] if extractor.score_layer is not None else [f"{common}.npz", with_scores]


def entry_prefix(record: CommitRecord) -> str:
    """What the names of a data file's entries begin with, after the folder."""
    return f"{stem(record.shard, record.revision)}-{record.file_sha256[:_SHORT]}"


def stored_features(storage: Storage, record: CommitRecord, extractor: Extractor) -> Features | None:
    """Features of a data file as an earlier evaluation left them, or None where there are none to be used."""
    for path in entry_paths(record, extractor):
        try:
            data = storage.read(path)
        except FileNotFoundError:
            continue
        features = Features.from_bytes(data, extractor.layers, **_identity(record, extractor))
        if features is not None and features.facts.count == record.written:
            return features
    return None


def store_features(storage: Storage, record: CommitRecord, extractor: Extractor, features: Features) -> None:
    storage.replace(entry_paths(record, extractor)[0], features.to_bytes(**_identity(record, extractor)))


def check_file(storage: Storage, record: CommitRecord) -> None:
    """Raises PipelineError where a data file is not the one that was committed."""
    try:
        found = storage.sha256(record.file)
    except FileNotFoundError:
        raise PipelineError(
            f"{storage.uri}/{record.file} is gone; remove its record {record.path}, and `specdiff run` makes its rows "
            "again"
        ) from None
    with reading(storage, record.file):
        if found != record.file_sha256:
            raise ValueError("it is not the file that was committed")


def compute_features(storage: Storage, record: CommitRecord, extractor: Extractor, batch: int = BATCH) -> Features:
    """Features of a data file, of which a batch of images is decoded at a time.

    Raises:
        PipelineError: an image cannot be read, does not suit the extractor, or the record promises another number.
    """
    with storage.open(record.file) as handle, reading(storage, record.file):
        parts = list(extracted(parquet_pictures(pq.ParquetFile(handle), record.file), extractor, batch))
    count = sum(part.facts.count for part in parts)
    if count != record.written:
        raise PipelineError(
            f"{record.file} has {count} images where its record says {record.written}: "
            "`specdiff verify` tells what else is wrong."
        )
    return Features.joined(parts)


def _identity(record: CommitRecord, extractor: Extractor) -> dict[str, str]:
    return {
        "file_sha256": record.file_sha256,
        "extractor": extractor.name,
        "weights_sha256": extractor.weights_sha256,
    }
