"""Features of every data file of a set into its store: for large sets by Ray Data, with an actor a device."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from pipeline.commits import CommitRecord
from pipeline.errors import PipelineError
from pipeline.extractors import load_extractor
from pipeline.feature_store import check_file, compute_features, store_features
from pipeline.spec import EvaluateSpec, WorkersSpec
from pipeline.storage import Storage

FILES = 1000  # data files of one pass of Ray Data, so that the driver holds no more of them


class FileExtractor:
    """Computes and stores the features of data files; one instance a device, which registers our extractor anew."""

    def __init__(self, uri: str, settings: EvaluateSpec, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self._storage = Storage(uri)
        self._extractor = load_extractor(
            settings.extractor, settings.weights, device, "inception_score" in settings.metrics
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """`record`: commit records as JSON. Returns `file`, and `problem`, '' or why its features are not there."""
        records = [CommitRecord.from_json(each) for each in batch["record"]]
        return {"file": [each.file for each in records], "problem": [self._problem(each) for each in records]}

    def _problem(self, record: CommitRecord) -> str:
        try:
            check_file(self._storage, record)
            store_features(
                self._storage, record, self._extractor, compute_features(self._storage, record, self._extractor)
            )
        except PipelineError as error:
            return str(error)
        return ""


def extract(storage: Storage, records: Iterable[CommitRecord], settings: EvaluateSpec, workers: WorkersSpec) -> None:
    """Store the features of data files, by as many actors as the job has workers, on devices like theirs.

    Raises:
        PipelineError: an image cannot be read or is not scored, or an actor failed.
        Unavailable: the cluster is out of reach.
    """
    # Imported only here: a small set is evaluated without Ray.
    from pipeline.cluster import connected

    waiting = iter(records)
    with connected():
        while some := list(islice(waiting, FILES)):
            for problem in _pass(storage, some, settings, workers):
                raise PipelineError(problem)


def _pass(storage: Storage, records: list[CommitRecord], settings: EvaluateSpec, workers: WorkersSpec) -> Iterator[str]:
    """The problems that there were with these files."""
    import ray.data
    from ray.exceptions import RayError

    from pipeline.cluster import death, gpus_per_worker

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    gpus = gpus_per_worker(workers.gpus)
    actors = min(workers.count, len(records))
    files = ray.data.from_items([{"record": record.to_json()} for record in records], override_num_blocks=len(records))
    done = files.map_batches(
        FileExtractor,
        fn_constructor_args=(storage.uri, settings, workers.threads, "cuda:0" if gpus else "cpu"),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
        num_cpus=workers.threads,
        num_gpus=gpus,
    )
    try:
        for row in done.iter_rows():
            if row["problem"]:
                yield row["problem"]
    except RayError as error:
        yield f"the evaluation failed: {death(error)}"
