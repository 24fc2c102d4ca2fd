"""What an evaluation adds to a job of 50,000 images, on the same core: ``python -m pipeline.evaluation_cost``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from pipeline.aggregate import Aggregate
from pipeline.commits import CommitRecord
from pipeline.encoding import encode, pixel_sha256
from pipeline.evaluation import features_of
from pipeline.extractors import load_extractor
from pipeline.metrics import score
from pipeline.references import load_reference
from pipeline.scratch import scratch_folder
from pipeline.shard import StoredImage, write_shard
from pipeline.storage import Storage, file_sha256
from specdiff import Request, Sample, Sampler, load_target
from specdiff.environment import environment

JOB_IMAGES = 50_000
STEPS = 250
SAMPLER: dict[str, Any] = {"verification": "block", "drafter": "free", "draft_length": 7, "lanes": 16}
GENERATED, SCORED, SHARD = 32, 10_000, 500
METRICS = ("fid", "inception_score", "kid", "precision_recall")


def generate() -> tuple[list[Sample], float]:
    """Some images, and images/s of the sampler once its lanes are full."""
    sampler = Sampler(load_target("fashion-mnist", steps=STEPS), **SAMPLER)
    sampler.sample([Request("warm", 0, label=0)])
    began = time.perf_counter()
    samples = sampler.sample([Request(str(i), i, label=i % 10) for i in range(GENERATED)]).samples
    return samples, GENERATED / (time.perf_counter() - began)


def committed_files(storage: Storage, samples: list[Sample], folder: Path) -> Iterator[CommitRecord]:
    """Data files of SCORED images, the same ones again and again under other keys."""
    stored = []
    for sample in samples:
        assert sample.image is not None, sample.error
        digest = pixel_sha256(sample.image)
        stored.append(StoredImage(encode(sample.image, "png"), 28, 28, 1, 1, 1, digest))
    for shard in range(SCORED // SHARD):
        rows = range(shard * SHARD, (shard + 1) * SHARD)
        table = pa.table({"key": [f"{row:012}" for row in rows], "label": [row % 10 for row in rows]})
        local = str(folder / "part.parquet")
        write_shard(local, table, [stored[row % len(stored)] for row in rows])
        file = f"data/part-{shard:05}.parquet"
        storage.upload(local, file)
        digest = file_sha256(local)
        yield CommitRecord(shard, 0, rows.start, SHARD, SHARD, (), 0, file, digest, storage.size(file), 1, "cpu")


def measure() -> dict[str, Any]:
    samples, generated_per_s = generate()
    extractor = load_extractor("fashion-mnist", None, "cpu", scores=True)
    with scratch_folder() as folder:
        storage = Storage(f"{folder}/set")
        records = list(committed_files(storage, samples, Path(folder)))
        began = time.perf_counter()
        aggregate = Aggregate(extractor, SCORED)
        for record in records:
            aggregate.add(features_of(storage, record, extractor))
        read_s = time.perf_counter() - began
    reference = load_reference("fashion-mnist", extractor, METRICS)
    began = time.perf_counter()
    score(METRICS, aggregate, reference, extractor, [])
    scores_s = time.perf_counter() - began
    generation_s = JOB_IMAGES / generated_per_s
    evaluation_s = JOB_IMAGES * read_s / SCORED + scores_s
    return {
        "command": "python -m pipeline.evaluation_cost",
        "target": "fashion-mnist",
        "steps": STEPS,
        "sampler": SAMPLER,
        "metrics": METRICS,
        "generated_images_per_s": generated_per_s,
        "evaluated_images_per_s": SCORED / read_s,
        "scores_s": scores_s,
        "job_images": JOB_IMAGES,
        "generation_s": generation_s,
        "evaluation_s": evaluation_s,
        "arithmetic": "generation_s = job_images / generated_images_per_s; evaluation_s = job_images / "
        "evaluated_images_per_s + scores_s, whose samples of 10,000 do not grow; share = evaluation_s / generation_s",
        "share": evaluation_s / generation_s,
        **environment(torch.device("cpu")),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(), indent=2))
