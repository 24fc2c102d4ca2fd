"""Removes what crashes leave behind: files that no record names, unfinished files and uploads; never anything else."""

from __future__ import annotations

import re

from pipeline.commits import stream_committed
from pipeline.feature_store import ENTRY, entry_prefix
from pipeline.lease import Lease, LeasedStorage
from pipeline.manifest_store import read_index
from pipeline.output import read_job
from pipeline.storage import Storage

TEMPORARY = re.compile(r"((commits|data|lease|manifest|report|report/features)/)?\.tmp-.*")
_DATA = re.compile(r"data/part-\d{5,}(\.r\d+)?(\.a\d+)?\.parquet")
_MANIFEST = re.compile(r"manifest/part-\d{5,}\.parquet")


def clean(uri: str) -> list[str]:
    """Returns what was removed. The lease is held for it: what a driver is about to record is no debris.

    Raises:
        UsageError: there is no data set.
        Unavailable: another driver is at work there, or the storage is out of reach.
    """
    storage = Storage(uri)
    job, _ = read_job(storage)
    with Lease(storage, job.output.lease_timeout) as lease:
        leased = LeasedStorage(uri, lease)
        named: set[str] = set()
        featured: set[str] = set()
        for record in stream_committed(storage):
            named.add(record.file)
            featured.add(entry_prefix(record))
        index = read_index(storage)
        named |= {part.file for part in index.parts} if index is not None else set()
        patterns = [_DATA] if index is None else [_DATA, _MANIFEST]

        def is_debris(path: str) -> bool:
            if entry := ENTRY.fullmatch(path):
                return entry[1] not in featured
            return path not in named and any(pattern.fullmatch(path) for pattern in patterns)

        removed = [path for path in storage.list() if is_debris(path)]
        for path in removed:
            leased.remove(path)
        return removed + leased.remove_unfinished(lambda path: TEMPORARY.fullmatch(path) or is_debris(path))
