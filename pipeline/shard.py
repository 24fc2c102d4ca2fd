"""The Parquet file of a shard: the manifest's columns, the images, and what each of them cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS = 100
GROUP_BYTES = 64 << 20

_IMAGE_COLUMNS = (
    pa.field("image", pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])),
    pa.field("width", pa.int32()),
    pa.field("height", pa.int32()),
    pa.field("rounds", pa.int32()),
    pa.field("calls", pa.int32()),
    pa.field("evaluations", pa.int32()),
    pa.field("sha256", pa.string()),
)


@dataclass(frozen=True)
class StoredImage:
    """One image as the file holds it.

    Attributes:
        data: the encoded image.
        width, height: pixels.
        rounds, calls, evaluations: what the sampler spent on it.
        sha256: of its pixels (`encoding.pixel_sha256`).
    """

    data: bytes
    width: int
    height: int
    rounds: int
    calls: int
    evaluations: int
    sha256: str


def output_schema(manifest: pa.Schema) -> pa.Schema:
    """The manifest's columns and ours, with the metadata by which `datasets` decodes the images."""
    features: dict[str, Any] = {field.name: {"dtype": str(field.type), "_type": "Value"} for field in _IMAGE_COLUMNS}
    features["image"] = {"_type": "Image"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([*manifest, *_IMAGE_COLUMNS], metadata=metadata)


def write_shard(local_path: str, rows: pa.Table, images: Sequence[StoredImage]) -> None:
    """Writes the file, in row groups of at most 100 images or 64 MiB (a larger row has a group of its own).

    Args:
        rows: the manifest's rows that have an image, in manifest order.
        images: their images, in the same order.
    """
    schema = output_schema(rows.schema)
    options = {
        "compression": "zstd",
        "compression_level": 1,
        # Encoded images and digests neither repeat nor have a useful minimum.
        "use_dictionary": [name for name in rows.schema.names if name != "key"],
        "write_statistics": [name for name in schema.names if name not in ("image", "sha256")],
    }
    with pq.ParquetWriter(local_path, schema, **options) as writer:
        for start, stop in _groups(rows, images):
            table = _table(schema, rows.slice(start, stop - start), images[start:stop])
            writer.write_table(table, row_group_size=GROUP_ROWS)


def _groups(rows: pa.Table, images: Sequence[StoredImage]) -> Iterator[tuple[int, int]]:
    """Bounds of the row groups, half open."""
    start, held = 0, 0
    for i, image in enumerate(images):
        size = len(image.data) + rows.slice(i, 1).nbytes
        if i > start and (i - start == GROUP_ROWS or held + size > GROUP_BYTES):
            yield start, i
            start, held = i, 0
        held += size
    if start < len(images):
        yield start, len(images)


def _table(schema: pa.Schema, rows: pa.Table, images: Sequence[StoredImage]) -> pa.Table:
    # The path stays empty: a key is data, and must not become a file's name when the set is unpacked.
    files = pa.array([{"bytes": image.data, "path": None} for image in images], schema.field("image").type)
    numbers = [pa.array([getattr(image, f.name) for image in images], f.type) for f in _IMAGE_COLUMNS[1:]]
    return pa.table([*rows.columns, files, *numbers], schema=schema)
