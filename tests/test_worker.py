"""A worker in this process: what it does beside sampling."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from test_job import WAIT_S, pictures

import pipeline.worker
from pipeline.commits import CommitRecord
from pipeline.inventory import Inventory
from pipeline.publish import Publication
from pipeline.run import prepare
from pipeline.spec import load_job
from pipeline.storage import Storage
from pipeline.worker import Outcome, Worker


def test_sampling_goes_on_while_the_storage_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was handed out is sampled while the first upload hangs, and then it is all committed."""
    storage_answers = threading.Event()
    publish = pipeline.worker.publish

    def publish_at_last(publication: Publication) -> CommitRecord:
        assert storage_answers.wait(WAIT_S)
        return publish(publication)

    monkeypatch.setattr(pipeline.worker, "publish", publish_at_last)
    job = load_job(str(pictures(tmp_path, "pictures", count=12)))
    storage = Storage(job.output.uri)
    prepared = prepare(job, storage)
    worker = Worker(job, storage.uri, 0, prepared.batch_rows, "cpu", time.time(), time.time())
    worker.prepare()
    pieces = list(Inventory(12, job.output.shard_size).pieces(12, retry_failed=False))
    assert len(pieces) == 3
    for piece in pieces:
        worker.submit(piece, 1)
    deadline = time.monotonic() + WAIT_S
    while (report := worker.poll(0.1)).unpublished < 12:
        assert time.monotonic() < deadline, "sampling waits for the storage"
        assert report.outcomes == ()
        assert report.fault is None
    assert storage.list("commits/") == []
    storage_answers.set()
    outcomes: list[Outcome] = []
    while len(outcomes) < 3:
        assert time.monotonic() < deadline
        outcomes += worker.poll(1.0).outcomes
    assert [(outcome.kind, outcome.piece) for outcome in outcomes] == [("committed", piece) for piece in pieces]
