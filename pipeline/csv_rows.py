"""Rows of a CSV manifest."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.raw_rows import BATCH_ROWS, RawBatch, is_text, text_array


class CsvRows:
    """A CSV file: UTF-8, comma, double quotes, a header; every column is text."""

    optional_columns = False

    def __init__(self, name: str, local: str) -> None:
        self.name, self.local = name, local

    def schema(self) -> Any:
        with self._open() as file:
            names = self._header(csv.reader(file, strict=True))
        return pa.schema([(name, pa.string()) for name in names])

    def batches(self, schema: Any) -> Iterator[RawBatch]:
        with self._open() as file:
            reader = csv.reader(file, strict=True)
            names = self._header(reader)
            rows: list[list[str]] = []
            lines: list[int] = []
            broken: dict[int, str] = {}
            for line, row, problem in _records(reader):
                if not problem and len(row) != len(names):
                    problem = f"{len(row)} fields where the header has {len(names)}"
                if problem:
                    broken[len(rows)] = problem
                    row = [""] * len(names)
                rows.append(row)
                lines.append(line)
                if len(rows) == BATCH_ROWS:
                    yield _batch(names, schema, rows, lines, broken)
                    rows, lines, broken = [], [], {}
            if rows:
                yield _batch(names, schema, rows, lines, broken)

    def _open(self) -> io.TextIOWrapper:
        # What is not UTF-8 becomes lone surrogates, which mark the row later: one wrong byte must not hide other rows.
        return open(self.local, encoding="utf-8-sig", errors="surrogateescape", newline="")

    def _header(self, reader: Any) -> list[str]:
        for line, row, problem in _records(reader):
            if problem:
                raise UsageError(f"{self.name}:{line}: {problem}")
            for column, name in enumerate(row, start=1):
                if not name.strip():
                    raise UsageError(f"{self.name}:{line}: column {column} has no name; name it or take it out")
                if not is_text(name):
                    raise UsageError(f"{self.name}:{line}: the name of column {column} is not UTF-8 text")
                if name in row[: column - 1]:
                    raise UsageError(f"{self.name}:{line}: column `{name}` is there twice")
            return row
        raise UsageError(f"{self.name}: is empty; a CSV manifest begins with a line of column names")


def _records(reader: Any) -> Iterator[tuple[int, list[str], str]]:
    """(line where it begins, fields, problem or '') of each record; blank lines are none."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # the reader goes on with the next line
            yield line, [], f"not valid CSV: {error}"
            continue
        if len(row) > 1 or (row and row[0].strip()):
            yield line, row, ""


def _batch(names: list[str], schema: Any, rows: list[list[str]], lines: list[int], broken: dict[int, str]) -> RawBatch:
    values = dict(zip(names, zip(*rows, strict=True), strict=True))
    columns = {name: text_array(list(values[name]), broken) for name in schema.names}
    return RawBatch(columns, np.array(lines, np.int64), broken)
