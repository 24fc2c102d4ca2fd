"""A committed data set written as a worker writes it, but from given pixels, for tests of what reads such sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.commits import CommitRecord, stem
from pipeline.encoding import encode, pixel_sha256
from pipeline.manifest_store import Index, Part
from pipeline.shard import StoredImage, write_shard
from pipeline.spec import Job
from pipeline.storage import Storage, file_sha256


def write_set(
    folder: Path,
    images: NDArray[np.uint8],
    labels: Sequence[int | None] | None = None,
    files: int = 1,
    rows: int = 0,
    prompts: Sequence[str] | None = None,
    image_format: str = "png",
) -> Storage:
    """Commit images, uint8 [count, height, width, channels], in so many files; the manifest may have more rows."""
    folder.mkdir(exist_ok=True)
    storage = Storage(str(folder / "set"))
    count = len(images)
    manifest = {
        "key": [f"{row:012}" for row in range(max(rows, count))],
        "seed": pa.array(range(max(rows, count)), pa.int64()),
    }
    if labels is not None:
        manifest["label"] = pa.array([*labels, *[0] * (max(rows, count) - count)], pa.int64())
    if prompts is not None:
        manifest["prompt"] = pa.array(prompts)
    table = pa.table(manifest)
    local = folder / "part.parquet"
    pq.write_table(table, local)
    storage.upload(str(local), "manifest/part-00000.parquet")
    part = Part("manifest/part-00000.parquet", 0, len(table), file_sha256(str(local)))
    storage.create("manifest.json", Index(len(table), 0, "", "", (), 0, (part,)).to_json().encode())
    for shard, numbers in enumerate(np.array_split(np.arange(count), files)):
        stored = [
            StoredImage(
                encode(images[i], image_format), images.shape[2], images.shape[1], 1, 1, 1, pixel_sha256(images[i])
            )
            for i in numbers
        ]
        write_shard(str(local), table.take(pa.array(numbers)), stored)
        path = f"data/{stem(shard, 0)}.parquet"
        storage.upload(str(local), path)
        record = CommitRecord(
            shard=shard,
            revision=0,
            first_row=int(numbers[0]),
            rows=len(numbers),
            written=len(numbers),
            failed=(),
            skipped=0,
            file=path,
            file_sha256=file_sha256(str(local)),
            bytes=local.stat().st_size,
            attempt=1,
            device="cpu",
        )
        storage.create(record.path, record.to_json().encode())
    return storage


def write_job(storage: Storage, job: Job, rows: int) -> None:
    """`job.json`, as far as commands read it that generate nothing."""
    document = {"format": 1, "job": job.model_dump(mode="json"), "manifest": {"rows": rows}}
    storage.create("job.json", json.dumps(document).encode())


def job(**evaluate: Any) -> Job:
    """A job of the built-in target, evaluated as given, or as it is by default."""
    settings = {"extractor": "fashion-mnist", "reference": "fashion-mnist", **evaluate}
    return Job.model_validate(
        {
            "name": "trousers & co",
            "target": {"name": "fashion-mnist", "steps": 100},
            "manifest": {"range": {"count": 8}},
            "output": {"uri": "unused"},
            "evaluate": settings,
        }
    )
