"""All rows of a manifest, checked, on local disk: memory stays bounded, and nothing is stored if one is wrong."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.duplicates import KeyLog
from pipeline.errors import UsageError
from pipeline.jobfile import shown
from pipeline.manifest_store import BLOCK_ROWS, rechunked
from pipeline.raw_rows import Source
from pipeline.rowchecks import ERROR, check_columns, check_rows, normal_schema
from pipeline.sources import merged_schema
from pipeline.spec import ManifestSpec

if TYPE_CHECKING:
    from specdiff.targets.base import TargetInfo

SHOWN_PROBLEMS = 20


class Problems:
    """The first problems of a manifest in order of rows, and how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[tuple[int, str]] = []

    def add(self, found: list[tuple[int, str]], count: int) -> None:
        """Takes the first of `count` further problems, as (row, text) in order of rows."""
        self.count += count
        self._first = sorted(self._first + found[:SHOWN_PROBLEMS], key=lambda problem: problem[0])[:SHOWN_PROBLEMS]

    def lines(self) -> list[str]:
        return [text for _, text in self._first]

    def refusal(self) -> str:
        """The message that refuses a manifest with these problems."""
        more = self.count - len(self._first)
        return "\n  ".join(
            [
                f"problems with the manifest's rows: {self.count}. Correct them, or leave such rows out with "
                "manifest.on_bad_row: skip",
                *self.lines(),
                *([f"… and {more} more"] if more else []),
            ]
        )


@dataclass(frozen=True)
class CheckedRows:
    """Checked rows on local disk.

    Attributes:
        schema: of the normal form (pa.Schema).
        spool: Arrow file of the manifest's own rows, before `images_per_row`.
        first_rows: the first row of each batch in it.
        repeated: int64 [own rows], 1 + the row whose key this one repeats, 0 for none; None if no key is repeated.
        images_per_row: rows to make of each.
        problems: what was wrong.
    """

    schema: Any
    spool: str
    first_rows: list[int]
    repeated: NDArray[np.int64] | None
    images_per_row: int
    problems: Problems
    count: int

    def blocks(self) -> Iterator[Any]:
        """All rows in normal form, in blocks of BLOCK_ROWS (pa.Table)."""
        return rechunked(self._images(), BLOCK_ROWS)

    def key(self, row: int) -> str:
        """The key of one of the manifest's own rows."""
        number = bisect_right(self.first_rows, row) - 1
        with pa.memory_map(self.spool) as file:
            batch = pa.ipc.open_file(file).get_batch(number)
            return str(batch["key"][row - self.first_rows[number]].as_py())

    def _images(self) -> Iterator[Any]:
        with pa.memory_map(self.spool) as file:
            reader = pa.ipc.open_file(file)
            for number, first_row in enumerate(self.first_rows):
                table = pa.Table.from_batches([reader.get_batch(number)])
                if self.repeated is not None:
                    table = _with_repeats(table, self.repeated[first_row : first_row + len(table)])
                if self.images_per_row == 1:
                    yield table
                    continue
                step = max(1, BLOCK_ROWS // self.images_per_row)
                for start in range(0, len(table), step):
                    yield _expanded(table.slice(start, step), self.images_per_row)


def _with_repeats(table: Any, repeated: NDArray[np.int64]) -> Any:
    """A table whose rows that repeat a key (1 + the row they repeat; 0 for others) have that as an error too."""
    errors = table[ERROR].to_pylist()
    for offset in np.flatnonzero(repeated):
        reason = f"key: {shown(table['key'][offset].as_py())} is row {repeated[offset] - 1}'s already"
        errors[offset] = reason if errors[offset] is None else f"{errors[offset]}; {reason}"
    return table.set_column(table.schema.get_field_index(ERROR), ERROR, pa.array(errors, pa.string()))


def _expanded(table: Any, images_per_row: int) -> Any:
    """Each row as many times: keys end in -0, -1, …; the first keeps the row's seed, the others' derive from it."""
    result = table.take(np.repeat(np.arange(len(table)), images_per_row))
    images = range(images_per_row)
    keys = [f"{key}-{image}" for key in table["key"].to_pylist() for image in images]
    seeds = [_derived(seed, image) for seed in table["seed"].to_pylist() for image in images]
    for name, values in (("key", pa.array(keys, pa.string())), ("seed", pa.array(seeds, pa.int64()))):
        result = result.set_column(result.schema.get_field_index(name), name, values)
    return result


def _derived(seed: int | None, image: int) -> int | None:
    """Seed of a row's image number `image`, 0 … 2⁶³−1."""
    if seed is None or image == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{image}".encode(), digest_size=8).digest(), "little") >> 1


def check(sources: list[Source], info: TargetInfo, spec: ManifestSpec, folder: str) -> CheckedRows:
    """Reads and checks all rows and keeps them in the local `folder`. Raises UsageError for wrong files or columns."""
    raw_schema = merged_schema(sources)
    wrong = check_columns(raw_schema.names, info)
    if wrong:
        raise UsageError("\n".join(f"{spec.path or 'manifest.range'}: {each}" for each in wrong))
    schema = normal_schema(raw_schema)
    problems = Problems()
    keys = KeyLog(folder)
    spool = os.path.join(folder, "rows.arrow")
    first_rows: list[int] = []
    source_rows: list[int] = []
    row = 0
    with pa.OSFile(spool, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for source in sources:
            source_rows.append(row)
            for batch in source.batches(raw_schema):
                checked = check_rows(batch, schema, info, row)
                found = [
                    (row + offset, f"{source.name}:{batch.lines[offset]}: {reason}")
                    for offset, reason in checked.problems[:SHOWN_PROBLEMS]
                ]
                problems.add(found, len(checked.problems))
                if checked.keys is not None:
                    keys.add(checked.keys.to_pylist(), row, batch.lines)
                first_rows.append(row)
                writer.write_batch(checked.batch)
                row += batch.rows
    if not row:
        raise UsageError(f"{spec.path}: has no rows")
    repeats = keys.repeats(os.path.join(folder, "repeated"), SHOWN_PROBLEMS)
    rows = CheckedRows(
        schema, spool, first_rows, repeats.marks, spec.images_per_row, problems, row * spec.images_per_row
    )

    def place(at: int, line: int) -> str:
        return f"{sources[bisect_right(source_rows, at) - 1].name}:{line}"

    found = []
    for each in repeats.shown:
        there = place(each.first_row, each.first_line)
        found.append(
            (each.row, f"{place(each.row, each.line)}: key: {shown(rows.key(each.row))} is already in {there}")
        )
    problems.add(found, repeats.count)
    return rows
