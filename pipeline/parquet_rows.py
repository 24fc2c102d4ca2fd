"""Rows of a Parquet manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.raw_rows import BATCH_ROWS, INPUT_COLUMNS, TEXT_ONLY, RawBatch


class ParquetRows:
    """A Parquet file; rows are counted from 0."""

    optional_columns = False

    def __init__(self, name: str, local: str) -> None:
        self.name, self.local = name, local

    def schema(self) -> Any:
        schema = self._open().schema_arrow
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise UsageError(f"{self.name}: column `{name}` is there twice")
        return pa.schema([(each.name, self._type(each)) for each in schema])

    def batches(self, schema: Any) -> Iterator[RawBatch]:
        file, row = self._open(), 0
        try:
            for batch in file.iter_batches(BATCH_ROWS):
                columns = {name: batch.column(name).cast(schema.field(name).type) for name in schema.names}
                yield RawBatch(columns, np.arange(row, row + len(batch), dtype=np.int64))
                row += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self.name}: cannot be read beyond row {row}: {_one_line(error)}") from error

    def _type(self, column: Any) -> Any:
        kind = _plain(column.type)
        if column.name not in INPUT_COLUMNS:
            return kind
        normal = INPUT_COLUMNS[column.name]
        number = pa.types.is_integer(kind) and column.name not in TEXT_ONLY
        number = number or (pa.types.is_floating(kind) and pa.types.is_floating(normal))
        if not (number or pa.types.is_string(kind) or pa.types.is_null(kind)):
            wanted = _WORDS.get(normal, "text")
            raise UsageError(f"{self.name}: column `{column.name}`: must hold {wanted}, not {column.type}")
        return pa.string()

    def _open(self) -> Any:
        try:
            return pq.ParquetFile(self.local)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self.name}: not a readable Parquet file: {_one_line(error)}") from error


_WORDS = {pa.int64(): "whole numbers", pa.float64(): "numbers"}


def _plain(kind: Any) -> Any:
    """A type without the storage tricks that say nothing about values: dictionaries and wide offsets."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
