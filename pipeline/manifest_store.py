"""The normalised manifest of an output: immutable Parquet parts, and `manifest.json`, which names those that count.

Rows are only ever appended, as further parts. `manifest.json` is replaced last, so that a writer killed at any moment
leaves either the old manifest or the new; parts that it does not name are debris, which the next writer overwrites or
removes.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.damage import reading
from pipeline.errors import UsageError
from pipeline.jobfile import shown
from pipeline.rowchecks import ERROR
from pipeline.storage import Storage, file_sha256

INDEX = "manifest.json"
FOLDER = "manifest"
BLOCK_ROWS = 8192  # rows of a row group, and of the blocks that the digest is computed over
PART_ROWS = 16 * BLOCK_ROWS


@dataclass(frozen=True)
class Part:
    """One Parquet file of normalised rows."""

    file: str
    first_row: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What `manifest.json` says.

    Attributes:
        rows, bad: rows in all, and those among them with an `__error__`.
        digest: sha256 over the rows (`digest`).
        source: sha256 over the files that they were read from and what they were checked against.
        problems: the first few, as printed; problem_count: of all.
        parts: the files, in order of rows.
    """

    rows: int
    bad: int
    digest: str
    source: str
    problems: tuple[str, ...]
    problem_count: int
    parts: tuple[Part, ...]
    format: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Index:
        """Raises UsageError for a format of another version."""
        fields = json.loads(text)
        if fields["format"] != 1:
            raise UsageError(
                f"{INDEX} has format {fields['format']}, which this version does not know; use a newer one"
            )
        parts = tuple(Part(**each) for each in fields.pop("parts"))
        return Index(**{**fields, "problems": tuple(fields["problems"])}, parts=parts)


def read_index(storage: Storage) -> Index | None:
    """The index of a manifest that was written whole, or None."""
    try:
        data = storage.read(INDEX)
    except FileNotFoundError:
        return None
    with reading(storage, INDEX):
        return Index.from_json(data)


def read_rows(storage: Storage, first_row: int, rows: int) -> Any:
    """Rows `first_row` … `first_row + rows − 1` of OUTPUT's manifest (pa.Table), fewer where it ends.

    Reads the row groups that hold them and no more. Raises UsageError where there is no manifest, Unavailable.
    """
    index = read_index(storage)
    if index is None:
        raise UsageError(f"{storage.uri}: holds no manifest; `specdiff run` makes it")
    last_row = first_row + rows
    tables = [
        _part_rows(storage, part, max(first_row - part.first_row, 0), min(last_row - part.first_row, part.rows))
        for part in index.parts
        if part.first_row < last_row and first_row < part.first_row + part.rows
    ]
    return pa.concat_tables(tables) if tables else _part_rows(storage, index.parts[0], 0, 0)


def _part_rows(storage: Storage, part: Part, start: int, stop: int) -> Any:
    with storage.open(part.file) as file, reading(storage, part.file):
        parquet = pq.ParquetFile(file)
        starts = np.cumsum([0, *(parquet.metadata.row_group(each).num_rows for each in range(parquet.num_row_groups))])
        wanted = [each for each in range(parquet.num_row_groups) if starts[each] < stop and start < starts[each + 1]]
        table = parquet.read_row_groups(wanted)
        return table.slice(start - int(starts[wanted[0]]), stop - start) if wanted else table


def stored_blocks(storage: Storage, index: Index) -> Iterator[Any]:
    """All rows of a stored manifest, in blocks of BLOCK_ROWS (pa.Table)."""

    def groups() -> Iterator[Any]:
        for part in index.parts:
            with storage.open(part.file) as file, reading(storage, part.file):
                parquet = pq.ParquetFile(file)
                for group in range(parquet.num_row_groups):
                    yield parquet.read_row_group(group)

    return rechunked(groups(), BLOCK_ROWS)


def rechunked(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    """The rows of tables of one schema, in tables of `rows` rows; the last may be shorter."""
    held: list[Any] = []
    count = 0
    for table in tables:
        held.append(table)
        count += len(table)
        if count >= rows:
            joined, start = pa.concat_tables(held), 0
            while count - start >= rows:
                yield joined.slice(start, rows)
                start += rows
            held, count = [joined.slice(start)], count - start
    if count:
        yield pa.concat_tables(held)


def digest(blocks: Iterable[Any]) -> str:
    """sha256 over normalised rows, given in blocks of BLOCK_ROWS: equal for equal rows, whatever files they came in."""
    hashed = hashlib.sha256(b"specdiff manifest 1")
    for block in blocks:
        for piece in _canonical(block):
            hashed.update(piece)
    return hashed.hexdigest()


def _canonical(table: Any) -> Iterator[bytes]:
    """Rows as bytes that depend on names, types and values alone. Of an error, only that there is one."""
    for name in sorted(table.column_names):
        values = table[name].combine_chunks()
        values = values.is_valid() if name == ERROR else values
        kind = values.type
        yield f"{name}\0{kind}\0{len(values)}\0{values.null_count}\0".encode()
        if values.null_count:
            yield np.packbits(np.asarray(values.is_valid())).tobytes()
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            filled = pc.fill_null(values, pa.scalar(b"" if pa.types.is_binary(kind) else "", kind))
            yield np.asarray(pc.binary_length(filled)).tobytes()
            yield b"".join(filled.cast(pa.binary()).to_pylist())
        elif pa.types.is_integer(kind) or kind in (pa.bool_(), pa.float32(), pa.float64()):
            yield np.ascontiguousarray(pc.fill_null(values, pa.scalar(0, pa.int8()).cast(kind))).tobytes()
        else:
            yield repr(values.to_pylist()).encode()


def _same(first: Any, second: Any) -> bool:
    return list(_canonical(first)) == list(_canonical(second))


def first_difference(storage: Storage, index: Index, blocks: Iterable[Any]) -> str | None:
    """Why the rows of `blocks` (BLOCK_ROWS each) do not begin with the stored ones, naming the first row; or None."""
    row = 0
    new = iter(blocks)
    for old in stored_blocks(storage, index):
        block = next(new, old.slice(0, 0))
        if row == 0 and (reason := _schema_difference(old.schema, block.schema)):
            return reason
        shared = min(len(old), len(block))
        if not _same(old.slice(0, shared), block.slice(0, shared)):
            # The number of equal rows at the start: the longest pair of equal beginnings, less than `shared`.
            equal = bisect_left(range(1, shared), True, key=lambda n: not _same(old.slice(0, n), block.slice(0, n)))
            return f"row {row + equal} differs: {_row_difference(old.slice(equal, 1), block.slice(equal, 1))}"
        if shared < len(old):
            key = old["key"][shared].as_py()
            return (
                f"row {row + shared} (key {shown(key)}) is gone; there were {index.rows} rows, here are {row + shared}"
            )
        row += len(old)
    return None


def _schema_difference(old: Any, new: Any) -> str:
    for name in old.names:
        if name not in new.names:
            return f"column `{name}` is gone"
        if old.field(name).type != new.field(name).type:
            return f"column `{name}` holds {old.field(name).type} there, {new.field(name).type} here"
    added = [name for name in new.names if name not in old.names]
    return f"column `{added[0]}` is new" if added else ""


def _row_difference(old: Any, new: Any) -> str:
    """What two tables of one row each do not share."""
    changes = [
        f"{name}: {shown(old[name][0].as_py())} there, {shown(new[name][0].as_py())} here"
        for name in old.column_names
        if not _same(old.select([name]), new.select([name]))
    ]
    return ", ".join(changes)


def write_parts(storage: Storage, blocks: Iterable[Any], known: Iterable[Part], folder: str) -> tuple[Part, ...]:
    """All parts, after storing the rows of `blocks` behind the `known` ones, by way of a file in a local `folder`."""
    parts = list(known)
    local = os.path.join(folder, "part.parquet")
    first_row = sum(part.rows for part in parts)
    for table in rechunked(blocks, PART_ROWS):
        pq.write_table(table, local, row_group_size=BLOCK_ROWS, compression="zstd")
        part = Part(f"{FOLDER}/part-{len(parts):05d}.parquet", first_row, len(table), file_sha256(local))
        _place(storage, local, part)
        parts.append(part)
        first_row += part.rows
    return tuple(parts)


def rows_beyond(blocks: Iterable[Any], row: int) -> Iterator[Any]:
    """The rows of `blocks` from row number `row` on."""
    for block in blocks:
        if row < len(block):
            yield block.slice(row)
        row = max(row - len(block), 0)


def _place(storage: Storage, local: str, part: Part) -> None:
    """Uploads a part in the place of what a writer that was killed may have left there."""
    try:
        storage.upload(local, part.file)
    except FileExistsError:
        if storage.sha256(part.file) != part.sha256:
            storage.remove(part.file)
            storage.upload(local, part.file)


def remove_debris(storage: Storage, parts: Iterable[Part]) -> None:
    """Removes the files of the manifest's folder that are none of `parts`."""
    named = {part.file for part in parts}
    for file in storage.list(f"{FOLDER}/"):
        if file not in named:
            storage.remove(file)
