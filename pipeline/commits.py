"""Commit records: which rows of the manifest are done, and which file holds their images.

A record is created exclusively and last, after its data file was read back, so that the data set is exactly the union
of the files that records name. Rows are done when some record covers them; of two records over one row the later
revision counts (a row that failed, then succeeded when it was tried again).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.damage import reading
from pipeline.errors import PipelineError
from pipeline.storage import Storage

FORMAT = 1
FOLDER = "commits/"
_NAME = re.compile(r"commits/part-(\d{5,})(?:\.r(\d+))?\.json")
_BATCH = 256  # records read together


@dataclass(frozen=True)
class FailedRow:
    """A row that was tried and has no image."""

    row: int
    key: str
    seed: int
    reason: str


@dataclass(frozen=True)
class CommitRecord:
    """What one data file holds.

    Attributes:
        shard: number of the shard; its rows are [shard · shard_size, (shard + 1) · shard_size).
        revision: 0 for the shard's first file, K for its file rK.
        first_row: lowest row number covered.
        rows: how many rows from ``first_row`` on, or the list of their numbers.
        written: rows that are in the file; ``written + len(failed) + skipped`` is the number of rows.
        failed: rows that were tried and have no image.
        skipped: rows that the manifest's check found to be bad.
        file: path of the data file; ``file_sha256`` and ``bytes`` are its digest and size.
        attempt: 1 for the first time the shard was run.
        device: kind of device that made the images, on which their bytes may depend.
        software: versions of what made them.
        counters: ``Stats.to_dict()`` of the work for it, and under ``work`` its time (``Work``); sums over records are
            exact.
    """

    shard: int
    revision: int
    first_row: int
    rows: int | tuple[int, ...]
    written: int
    failed: tuple[FailedRow, ...]
    skipped: int
    file: str
    file_sha256: str
    bytes: int
    attempt: int
    device: str
    software: dict[str, str] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return record_path(self.shard, self.revision)

    @property
    def row_numbers(self) -> Sequence[int]:
        """Numbers of the rows covered, rising."""
        return range(self.first_row, self.first_row + self.rows) if isinstance(self.rows, int) else self.rows

    def to_json(self) -> str:
        values = asdict(self)
        return json.dumps({"format": FORMAT, **values}, ensure_ascii=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, data: str) -> CommitRecord:
        """Raises ValueError where the record is broken or its counts do not add up."""
        values = json.loads(data)
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"not a commit record of format {FORMAT}")
        try:
            values["failed"] = tuple(FailedRow(**row) for row in values["failed"])
            values["rows"] = values["rows"] if isinstance(values["rows"], int) else tuple(values["rows"])
            record = cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a commit record: {error}") from error
        if record.written + len(record.failed) + record.skipped != len(record.row_numbers):
            raise ValueError("written, failed and skipped do not add up to rows")
        return record


def stem(shard: int, revision: int) -> str:
    """`part-00012`, or `part-00012.r1` for the first file after it."""
    return f"part-{shard:05d}" + (f".r{revision}" if revision else "")


def record_path(shard: int, revision: int) -> str:
    return f"{FOLDER}{stem(shard, revision)}.json"


def read_record(storage: Storage, shard: int, revision: int) -> CommitRecord | None:
    """One record, or None where there is none. Raises PipelineError for one that cannot be read; it is named."""
    path = record_path(shard, revision)
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    return _parsed(storage, path, data)


def _parsed(storage: Storage, path: str, data: bytes) -> CommitRecord:
    with reading(storage, path):
        return CommitRecord.from_json(data.decode())


def stream_committed(
    storage: Storage, on_damage: Callable[[PipelineError], None] | None = None
) -> Iterator[CommitRecord]:
    """The records, by shard and revision; a few hundred are held at a time.

    Args:
        on_damage: is told of a record that cannot be read, which is then left out.

    Raises:
        PipelineError: a record that cannot be read, without `on_damage`; it is named.
    """
    numbered = []
    for path in storage.list(FOLDER):
        if match := _NAME.fullmatch(path):
            numbered.append((int(match[1]), int(match[2] or 0)))
    numbered.sort()
    for start in range(0, len(numbered), _BATCH):
        paths = [record_path(*number) for number in numbered[start : start + _BATCH]]
        for path, data in zip(paths, storage.read_many(paths), strict=True):
            try:
                record = _parsed(storage, path, data)
            except PipelineError as error:
                if on_damage is None:
                    raise
                on_damage(error)
                continue
            yield record


def committed(storage: Storage) -> list[CommitRecord]:
    """All records, by shard and revision. Raises PipelineError for one that cannot be read."""
    return list(stream_committed(storage))
