"""What a data set has and what it lacks, from its commit records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.commits import CommitRecord, stream_committed
from pipeline.scheduler import Piece
from pipeline.storage import Storage
from pipeline.throughput import Throughput
from specdiff import Stats


@dataclass
class _Partial:
    """A shard that has records, and rows that may be done yet."""

    covered: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    next_revision: int = 0


class Inventory:
    """Counts over the records, and the pieces of work that are left.

    A whole shard costs a byte; only those with missing or failed rows are held with their numbers.

    Attributes:
        rows: rows of the manifest.
        written, failed, skipped: rows that have an image, that were tried in vain, and that the check of the manifest
            left out.
        stats: the records' counters, added up.
        throughput: their times, added up.
        flawed: shards with failed or skipped rows.
    """

    def __init__(self, rows: int, shard_size: int) -> None:
        self.rows = rows
        self.written = self.failed = self.skipped = 0
        self.stats = Stats()
        self.throughput = Throughput()
        self.flawed: set[int] = set()
        self._size = shard_size
        self._whole = bytearray(-(-rows // shard_size))
        self._partial: dict[int, _Partial] = {}

    @classmethod
    def of(cls, storage: Storage, rows: int, shard_size: int) -> Inventory:
        """Of what is committed now. Raises PipelineError for a record that cannot be read."""
        inventory = cls(rows, shard_size)
        for record in stream_committed(storage):
            inventory.add(record)
        return inventory

    @property
    def missing(self) -> int:
        """Rows that no record covers."""
        return self.rows - self.written - self.failed - self.skipped

    @property
    def exit_status(self) -> int:
        """Of a command that leaves the set as it is: 1 where rows failed or were skipped, else 0."""
        return 1 if self.failed or self.skipped else 0

    def add(self, record: CommitRecord) -> None:
        """Counts a record; those of one shard must come by revision."""
        rows = set(record.row_numbers)
        failed = {each.row for each in record.failed}
        shard = self._partial.pop(record.shard, _Partial())
        self.written += record.written
        self.skipped += record.skipped
        self.failed += len(failed) - len(shard.failed & rows)
        self.stats += Stats.from_dict(record.counters)
        self.throughput.add(record)
        shard.covered |= rows
        shard.failed = (shard.failed - rows) | failed
        shard.next_revision = record.revision + 1
        if shard.failed or record.skipped:
            self.flawed.add(record.shard)
        if shard.failed or len(shard.covered) < len(self._rows_of(record.shard)):
            self._partial[record.shard] = shard
        else:
            self._whole[record.shard] = True

    def pieces(self, limit: int, retry_failed: bool) -> Iterator[Piece]:
        """What is left to do of the first `limit` rows, in order; rows that failed are tried again only if asked."""
        for shard in range(-(-min(limit, self.rows) // self._size)):
            if self._whole[shard]:
                continue
            rows = [row for row in self._rows_of(shard) if row < limit]
            partial = self._partial.get(shard)
            if partial is None:
                yield Piece(shard, 0, range(rows[0], rows[-1] + 1))
                continue
            missing = [row for row in rows if row not in partial.covered]
            again = [row for row in rows if retry_failed and row in partial.failed]
            if missing or again:
                yield Piece(shard, partial.next_revision, tuple(sorted(missing + again)), retry=not missing)

    def _rows_of(self, shard: int) -> range:
        return range(shard * self._size, min((shard + 1) * self._size, self.rows))
