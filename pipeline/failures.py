"""`failures.jsonl`: every row without an image, and why, derived from the commit records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.commits import FOLDER, CommitRecord, FailedRow, stem
from pipeline.damage import reading
from pipeline.manifest import read_rows
from pipeline.rowchecks import ERROR
from pipeline.scheduler import Piece
from pipeline.storage import Storage

FAILURES = "failures.jsonl"


def write_failures(storage: Storage, flawed: Iterable[int], given_up: Iterable[tuple[Piece, str]]) -> None:
    """Writes the file anew.

    Args:
        flawed: shards with failed or skipped rows in their records.
        given_up: pieces that failed for good in the run that ends, with the reason.
    """
    lines = [line for shard in sorted(flawed) for line in _recorded(storage, shard)]
    for piece, reason in given_up:
        lines += [
            _line(row, values["key"], values["seed"], piece.shard, "shard", reason)
            for row, values in _manifest_rows(storage, list(piece.rows))
        ]
    storage.replace(FAILURES, "".join(lines).encode())


def read_failures(storage: Storage) -> Iterator[dict[str, Any]]:
    """The lines of the file, one at a time; none where there is no file. Raises PipelineError for a broken one."""
    try:
        lines = storage.read(FAILURES).splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with reading(storage, FAILURES):
            failure = json.loads(line)
        yield failure


def _recorded(storage: Storage, shard: int) -> Iterator[str]:
    """Lines of one shard, in order of rows; a later record's word on a row counts."""
    prefix = f"{FOLDER}{stem(shard, 0)}."
    records = [CommitRecord.from_json(data.decode()) for data in storage.read_many(storage.list(prefix))]
    failed: dict[int, FailedRow] = {}
    skipped: list[int] = []
    for record in sorted(records, key=lambda record: record.revision):
        for row in record.row_numbers:
            failed.pop(row, None)
        failed |= {each.row: each for each in record.failed}
        skipped += record.row_numbers if record.skipped else []
    lines = {row: _line(row, each.key, each.seed, shard, "sample", each.reason) for row, each in failed.items()}
    for row, values in _manifest_rows(storage, skipped):
        if values[ERROR] is not None:
            lines[row] = _line(row, values["key"], values["seed"], shard, "bad_row", values[ERROR])
    yield from (lines[row] for row in sorted(lines))


def _manifest_rows(storage: Storage, rows: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    if not rows:
        return
    table = read_rows(storage, rows[0], max(rows) - rows[0] + 1).select(["key", "seed", ERROR])
    for row in sorted(rows):
        yield row, table.slice(row - rows[0], 1).to_pylist()[0]


def _line(row: int, key: str | None, seed: int | None, shard: int, kind: str, reason: str) -> str:
    values = {"row": row, "key": key, "seed": seed, "shard": shard, "kind": kind, "reason": reason}
    return json.dumps(values, ensure_ascii=False) + "\n"
