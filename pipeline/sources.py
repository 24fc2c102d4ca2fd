"""The files of a manifest: found, fetched, and agreed on their columns."""

from __future__ import annotations

import glob
import os
import re
import shutil
from typing import Any

import pyarrow as pa
from fsspec.utils import glob_translate

from pipeline.csv_rows import CsvRows
from pipeline.errors import Unavailable, UsageError
from pipeline.jsonl_rows import JsonLinesRows
from pipeline.parquet_rows import ParquetRows
from pipeline.raw_rows import Source
from pipeline.storage import Storage

_READERS: dict[str, type[CsvRows | JsonLinesRows | ParquetRows]] = {
    ".csv": CsvRows,
    ".jsonl": JsonLinesRows,
    ".ndjson": JsonLinesRows,
    ".parquet": ParquetRows,
}


def open_sources(path: str, folder: str) -> list[Source]:
    """The manifest's files in sorted order; those of S3 are first copied to the local `folder`.

    Raises UsageError for a file that is not there, a glob that matches nothing, or an unknown ending; Unavailable.
    """
    root, names = find_files(path)
    storage = Storage(root)
    sources: list[Source] = []
    for name in names:
        shown_name = name if root == "." else f"{root.rstrip('/')}/{name}"
        kind = _READERS.get(os.path.splitext(name)[1].lower())
        if kind is None:
            raise UsageError(f"{shown_name}: a manifest file ends in {', '.join(_READERS)}")
        local = os.path.join(storage.uri, name)
        if "://" in storage.uri:
            local = os.path.join(folder, f"source-{len(sources):05d}")
            _copy(storage, name, local)
        sources.append(kind(shown_name, local))
    return sources


def find_files(path: str) -> tuple[str, list[str]]:
    """(folder, sorted paths within it) of a file or a glob."""
    path = path.removeprefix("file://")
    parts = path.split("/")
    folder, name = _folder(parts[:-1]), parts[-1]
    # A name that holds glob characters and is there is itself, not a pattern.
    if name and not _is_pattern(folder) and Storage(folder).exists(name):
        return folder, [name]
    if not _is_pattern(path):
        if "://" not in path and os.path.isdir(path):
            raise UsageError(f"{path}: is a folder; name its files, as in {path.rstrip('/')}/*.parquet")
        raise UsageError(f"{path}: no such file")
    fixed = next(index for index, part in enumerate(parts) if _is_pattern(part))
    folder, pattern = _folder(parts[:fixed]), "/".join(parts[fixed:])
    if "://" in folder:
        matches = re.compile(glob_translate(pattern)).match
        names = [each for each in Storage(folder).list() if matches(each)]
    else:
        found = glob.glob(pattern, root_dir=folder, recursive=True)
        names = sorted(each for each in found if os.path.isfile(os.path.join(folder, each)))
    if not names:
        raise UsageError(f"{path}: no file matches")
    return folder, names


def _folder(parts: list[str]) -> str:
    return "/".join(parts) or ("/" if parts else ".")


def _is_pattern(path: str) -> bool:
    return any(each in path for each in "*?[")


def _copy(storage: Storage, name: str, local: str) -> None:
    try:
        with storage.open(name) as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, 8 << 20)
    except OSError as error:
        raise Unavailable(f"{storage.uri}/{name}: could not be read: {error}") from error


def merged_schema(sources: list[Source]) -> Any:
    """The columns of all sources together, in the order of their first appearance; nothing known means text.

    Raises UsageError where a source lacks a column or gives it another type.
    """
    schemas = [source.schema() for source in sources]
    types: dict[str, Any] = {}
    origin: dict[str, Source] = {}
    for source, schema in zip(sources, schemas, strict=True):
        for name, new in zip(schema.names, schema.types, strict=True):
            known = types.get(name, pa.null())
            numbers = source.optional_columns and {known, new} == {pa.int64(), pa.float64()}
            if known != new and pa.null() not in (known, new) and not numbers:
                raise UsageError(f"{source.name}: column `{name}` is {new}, but {known} in {origin[name].name}")
            if known == pa.null() or numbers:
                types[name] = pa.float64() if numbers else new
                origin[name] = source
    for source, schema in zip(sources, schemas, strict=True):
        absent = [name for name in types if name not in schema.names]
        if absent and not source.optional_columns:
            raise UsageError(f"{source.name}: has no column `{absent[0]}`, which {origin[absent[0]].name} has")
    return pa.schema([(name, pa.string() if kind == pa.null() else kind) for name, kind in types.items()])
