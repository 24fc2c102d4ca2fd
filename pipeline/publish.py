"""The commit protocol: a finished piece of work becomes a data file, and then, last, a commit record.

Names are never reused. A file that lies under the wanted name without a record is debris of a crash, or the work of a
driver that is still alive somewhere and may yet write a record that names it. If it holds the same bytes it is taken as
it is; if not, it is left alone and the data goes under the next free name. Once the record exists, no other file of
these rows can ever be named, and those that lie there are removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pipeline.commits import CommitRecord, stem
from pipeline.errors import PipelineError
from pipeline.shard import StoredImage, write_shard
from pipeline.storage import Storage, file_sha256
from pipeline.work import Work

_MAX_NAMES = 16


@dataclass
class Publication:
    """One piece of work on its way into the storage.

    Attributes:
        storage: where it goes.
        record: what is to be recorded; `file`, `file_sha256` and `bytes` are filled in on the way.
        rows: the manifest's rows that have an image, in manifest order.
        images: their images.
        local_path: of a file that the caller removes, in which the data file is prepared.
        work: what the images cost so far; `ended` and this upload are added on the way.
        began: when this began, by `time.perf_counter`.
    """

    storage: Storage
    record: CommitRecord
    rows: pa.Table
    images: Sequence[StoredImage]
    local_path: str
    work: Work = field(default_factory=Work)
    began: float = field(default_factory=time.perf_counter)


class Taken(PipelineError):
    """Another driver has recorded the same piece of work."""


def publish(publication: Publication) -> CommitRecord:
    """Takes every step of the protocol; the rows are done when it returns.

    Raises:
        Taken: there is a record already; nothing was changed.
        PipelineError: the file did not come back as it was written, or the storage failed; trying again is safe.
    """
    for step in STEPS:
        step(publication)
    return publication.record


def write_file(publication: Publication) -> None:
    """The Parquet file, on the local disk."""
    write_shard(publication.local_path, publication.rows, publication.images)
    publication.record = replace(
        publication.record,
        file_sha256=file_sha256(publication.local_path),
        bytes=os.path.getsize(publication.local_path),
    )


def upload_file(publication: Publication) -> None:
    """The file, under the first name that is free or already holds the same bytes."""
    record, storage = publication.record, publication.storage
    for name in _names(record):
        try:
            storage.upload(publication.local_path, name)
        except FileExistsError:
            if storage.exists(record.path):
                raise Taken(f"{storage.uri}/{record.path} is there already") from None
            if storage.sha256(name) != record.file_sha256:
                continue
        publication.record = replace(record, file=name)
        return
    raise PipelineError(f"{storage.uri}/{name}: this and {_MAX_NAMES - 1} names before it hold other data; remove them")


def read_back(publication: Publication) -> None:
    """Compares what the storage returns with what was written."""
    record = publication.record
    found = publication.storage.sha256(record.file)
    if found != record.file_sha256:
        raise PipelineError(f"{record.file} was read back with sha256 {found}, but {record.file_sha256} was written")


def stamp(publication: Publication) -> None:
    """When the data was safe, and what it took to get it there, into the record's counters."""
    record, work = publication.record, publication.work
    work = replace(work, ended=time.time(), upload=work.upload + time.perf_counter() - publication.began)
    publication.record = replace(record, counters=record.counters | {"work": work.to_dict()})


def create_record(publication: Publication) -> None:
    """The commit itself."""
    record, storage = publication.record, publication.storage
    try:
        storage.create(record.path, record.to_json().encode())
    except FileExistsError:
        if CommitRecord.from_json(storage.read(record.path).decode()).file != record.file:
            storage.remove(record.file)
        raise Taken(f"{storage.uri}/{record.path} is there already") from None


def remove_debris(publication: Publication) -> None:
    """Files under other names of the same rows, which no record can name any more."""
    record = publication.record
    for name in _names(record):
        if name == record.file:
            return
        publication.storage.remove(name)


def _names(record: CommitRecord) -> Iterator[str]:
    """Names for the data file, best first."""
    first = f"data/{stem(record.shard, record.revision)}"
    yield f"{first}.parquet"
    for i in range(1, _MAX_NAMES):
        yield f"{first}.a{i}.parquet"


STEPS: tuple[Callable[[Publication], None], ...] = (
    write_file,
    upload_file,
    read_back,
    stamp,
    create_record,
    remove_debris,
)
