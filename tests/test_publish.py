"""The commit protocol, stopped after each of its steps, and met by debris and by another driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.publish
from pipeline.commits import CommitRecord, FailedRow, committed
from pipeline.errors import PipelineError
from pipeline.publish import STEPS, Publication, Taken, create_record, publish
from pipeline.shard import StoredImage
from pipeline.storage import Storage


def publication(storage: Storage, folder: Path, content: bytes = b"image", revision: int = 0) -> Publication:
    record = CommitRecord(
        shard=3,
        revision=revision,
        first_row=30,
        rows=2 if revision == 0 else (30, 31),
        written=1,
        failed=(FailedRow(31, "b", 8, "NaN"),),
        skipped=0,
        file="",
        file_sha256="",
        bytes=0,
        attempt=1,
        device="cpu",
    )
    rows = pa.table({"key": ["a"], "seed": pa.array([7], pa.int64())})
    return Publication(storage, record, rows, [StoredImage(content, 1, 1, 1, 1, 1, "0")], str(folder / "local"))


def check_whole(storage: Storage, content: bytes = b"image") -> CommitRecord:
    """Exactly one record, one data file, and the file is what the record says."""
    (record,) = committed(storage)
    assert storage.list("data/") == [record.file]
    assert storage.sha256(record.file) == record.file_sha256
    assert storage.size(record.file) == record.bytes
    with storage.open(record.file) as file:
        assert pq.read_table(file)["image"][0].as_py()["bytes"] == content
    return record


def test_it_commits(storage: Storage, tmp_path: Path) -> None:
    record = publish(publication(storage, tmp_path))
    assert check_whole(storage) == record
    assert record.file == "data/part-00003.parquet"
    assert record.path == "commits/part-00003.json"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_failure_at_any_step_can_be_repaired(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[..., None], moment: str
) -> None:
    def broken(of: Publication) -> None:
        if moment == "after":
            step(of)
        raise OSError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.publish, "STEPS", [broken if each is step else each for each in STEPS])
        with pytest.raises(OSError, match="out of luck"):
            publish(publication(storage, tmp_path))
    for record in committed(storage):
        assert storage.sha256(record.file) == record.file_sha256, "a record never names a file that is not whole"
    try:
        publish(publication(storage, tmp_path))
    except Taken:
        assert step.__name__ in ("create_record", "remove_debris")
    check_whole(storage)


KILLED = """
import os, sys
import pipeline.publish
from pathlib import Path
from pipeline.storage import Storage
from test_publish import publication
uri, folder, name = sys.argv[1:]
def killed(step):
    def then_killed(of):
        step(of)
        if step.__name__ == name:
            os.kill(os.getpid(), 9)
    return then_killed
pipeline.publish.STEPS = [killed(step) for step in pipeline.publish.STEPS]
pipeline.publish.publish(publication(Storage(uri), Path(folder)))
"""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_case_10_a_kill_after_any_step_can_be_repaired(
    storage: Storage, tmp_path: Path, step: Callable[..., None]
) -> None:
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", KILLED, storage.uri, str(tmp_path), step.__name__]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": here}, check=False).returncode == -signal.SIGKILL
    for record in committed(storage):
        assert storage.sha256(record.file) == record.file_sha256
    try:
        publish(publication(storage, tmp_path))
    except Taken:
        assert step.__name__ in ("create_record", "remove_debris")
    check_whole(storage)


def test_debris_of_other_bytes_is_never_overwritten_and_then_removed(storage: Storage, tmp_path: Path) -> None:
    storage.create("data/part-00003.parquet", b"half a file of another kind of device")
    record = publish(publication(storage, tmp_path))
    assert record.file == "data/part-00003.a1.parquet"
    check_whole(storage)


def test_a_zombie_overwrites_nothing(storage: Storage, tmp_path: Path) -> None:
    """It has uploaded and read back when another driver commits the shard with other bytes; then it wakes up."""
    zombie = publication(storage, tmp_path, b"zombie")
    before = STEPS.index(create_record)
    for step in STEPS[:before]:
        step(zombie)
    publish(publication(storage, tmp_path, b"driver"))
    with pytest.raises(Taken):
        create_record(zombie)
    with pytest.raises(Taken):
        publish(publication(storage, tmp_path, b"zombie"))
    check_whole(storage, b"driver")


def test_what_does_not_come_back_is_not_committed(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flip(local_path: str, path: str) -> None:
        storage.create(path, b"other" + Path(local_path).read_bytes())

    monkeypatch.setattr(storage, "upload", flip)
    with pytest.raises(PipelineError, match="was read back"):
        publish(publication(storage, tmp_path))
    assert committed(storage) == []


def test_a_retry_has_names_of_its_own(storage: Storage, tmp_path: Path) -> None:
    publish(publication(storage, tmp_path))
    record = publish(publication(storage, tmp_path, b"again", revision=1))
    assert record.file == "data/part-00003.r1.parquet"
    assert [each.path for each in committed(storage)] == ["commits/part-00003.json", "commits/part-00003.r1.json"]


def test_a_record_survives_json(storage: Storage, tmp_path: Path) -> None:
    record = publish(publication(storage, tmp_path, revision=1))
    assert CommitRecord.from_json(record.to_json()) == record
    with pytest.raises(ValueError, match="do not add up"):
        CommitRecord.from_json(record.to_json().replace('"written":1', '"written":2'))
    with pytest.raises(ValueError, match="not a commit record"):
        CommitRecord.from_json("{}")


def test_a_broken_record_is_named(storage: Storage) -> None:
    storage.create("commits/part-00000.json", b"{")
    with pytest.raises(PipelineError, match=r"commits/part-00000\.json"):
        committed(storage)
