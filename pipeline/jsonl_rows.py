"""Rows of a JSON Lines manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.jobfile import shown
from pipeline.raw_rows import BATCH_ROWS, INPUT_COLUMNS, TEXT_ONLY, RawBatch, is_text, text_array


class JsonLinesRows:
    """A JSON Lines file: one object a line.

    A column holds text, whole numbers, numbers (whole ones among them) or true/false, as its first value that is not
    null says; an absent value is null.
    """

    optional_columns = True

    def __init__(self, name: str, local: str) -> None:
        self.name, self.local = name, local

    def schema(self) -> Any:
        types: dict[str, Any] = {}
        for _, row, _ in self._records():
            for name, value in row.items():
                known, new = types.get(name), _TYPES.get(type(value), pa.null())
                if known is None or known == pa.null() or (known == pa.int64() and new == pa.float64()):
                    types[name] = new
        for name in types:
            if not name.strip() or not is_text(name):
                raise UsageError(f"{self.name}: {shown(name)} is no name for a column; name it, or take it out")
        return pa.schema([(name, pa.string() if name in INPUT_COLUMNS else kind) for name, kind in types.items()])

    def batches(self, schema: Any) -> Iterator[RawBatch]:
        rows: list[dict[str, Any]] = []
        lines: list[int] = []
        broken: dict[int, str] = {}
        for line, row, problem in self._records():
            if problem:
                broken[len(rows)] = problem
            rows.append(row)
            lines.append(line)
            if len(rows) == BATCH_ROWS:
                yield _batch(schema, rows, lines, broken)
                rows, lines, broken = [], [], {}
        if rows:
            yield _batch(schema, rows, lines, broken)

    def _records(self) -> Iterator[tuple[int, dict[str, Any], str]]:
        """(line, object, problem or '') of each line that is not blank."""
        with open(self.local, "rb") as file:
            for line, raw in enumerate(file, start=1):
                if line == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if raw.strip():
                    yield line, *_object(raw)


def _object(raw: bytes) -> tuple[dict[str, Any], str]:
    """(object, problem or '') of one line."""
    try:
        value = _DECODER.decode(raw.decode())
    except UnicodeDecodeError:
        return {}, "is not UTF-8 text"
    except json.JSONDecodeError as error:
        return {}, f"not valid JSON: {error.msg}, at character {error.pos + 1}"
    except (ValueError, RecursionError) as error:
        return {}, f"not valid JSON: {error}"
    return (value, "") if isinstance(value, dict) else ({}, 'is not a JSON object, as in {"seed": 1}')


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key is there twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant)
_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_WORDS = {pa.string(): "text", pa.int64(): "a whole number", pa.float64(): "a number", pa.bool_(): "true or false"}


def _batch(schema: Any, rows: list[dict[str, Any]], lines: list[int], broken: dict[int, str]) -> RawBatch:
    columns = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        values = [row.get(name) for row in rows]
        if name in INPUT_COLUMNS and name not in TEXT_ONLY:
            values = [each if each is None or type(each) is str else json.dumps(each) for each in values]
        else:
            for offset, value in enumerate(values):
                if value is not None and not _fits(value, kind):
                    broken.setdefault(
                        offset, f"{name}: must be {_WORDS[kind]}, like the values before; got {shown(value)}"
                    )
                    values[offset] = None
        columns[name] = text_array(values, broken) if kind == pa.string() else pa.array(values, kind)
    return RawBatch(columns, np.array(lines, np.int64), broken)


def _fits(value: Any, kind: Any) -> bool:
    if kind == pa.float64():
        return type(value) is float or (type(value) is int and abs(value) <= 2**53)
    if kind == pa.int64():
        return type(value) is int and -(2**63) <= value < 2**63
    return bool(_TYPES.get(type(value)) == kind)
