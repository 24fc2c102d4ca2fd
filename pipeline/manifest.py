"""A manifest checked and brought into normal form, in one pass over its rows and in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.checked_rows import CheckedRows, check
from pipeline.errors import UsageError
from pipeline.manifest_store import (
    INDEX,
    Index,
    digest,
    first_difference,
    read_index,
    read_rows,
    remove_debris,
    rows_beyond,
    write_parts,
)
from pipeline.range_rows import RangeRows
from pipeline.raw_rows import INPUT_COLUMNS, Source
from pipeline.rowchecks import ERROR
from pipeline.scratch import scratch_folder
from pipeline.sources import open_sources
from pipeline.spec import Job, ManifestSpec
from pipeline.storage import Storage, file_sha256
from specdiff.requests import Request

if TYPE_CHECKING:
    from specdiff.targets.base import TargetInfo

__all__ = ["Manifest", "normalise", "read_rows", "to_requests"]


@dataclass(frozen=True)
class Manifest:
    """What a manifest came to.

    Attributes:
        rows: all of them, bad ones and those of `images_per_row` included.
        bad: rows with a problem, which are skipped.
        digest: sha256 over the rows, the same for the same rows in other files.
        problems: the first 20, each with its file and line.
        problem_count: of all problems.
        columns: pa.Schema of the normal form without `__error__`.
        previous_rows: rows that the output held before; fewer than `rows` when this manifest extends it.
    """

    rows: int
    bad: int
    digest: str
    problems: list[str]
    problem_count: int
    columns: Any
    previous_rows: int = 0


def normalise(job: Job, info: TargetInfo, destination: Storage | None = None) -> Manifest:
    """Checks the manifest of a job for a target and stores it, normalised, in the output; None only checks.

    The output's own manifest must be this one, or its beginning. One that is the same is recognised by the bytes of the
    manifest's files, and nothing is written.

    Raises:
        UsageError: files, columns or (under `on_bad_row: fail`) rows are wrong, each named with file and line; or the
            rows do not begin with those that the output was made from. Nothing is written then.
        Unavailable: files or output are out of reach.
    """
    spec = job.manifest
    with scratch_folder() as folder:
        sources = _sources(spec, info, folder)
        source = _fingerprint(spec, sources, info)
        index = None if destination is None else _usable_index(destination)
        if destination is not None and index is not None and index.source == source and not _lost(destination, index):
            schema = read_rows(destination, 0, 0).schema
            return _manifest(index, schema, index.rows)
        rows = check(sources, info, spec, folder)
        if rows.problems.count and spec.on_bad_row == "fail":
            raise UsageError(rows.problems.refusal())
        checked = Index(
            rows=rows.count,
            bad=sum(len(block) - block[ERROR].null_count for block in rows.blocks()),
            digest=digest(rows.blocks()),
            source=source,
            problems=tuple(rows.problems.lines()),
            problem_count=rows.problems.count,
            parts=(),
        )
        previous_rows = 0 if index is None else index.rows
        if destination is not None:
            _store(destination, index, checked, rows, folder)
        return _manifest(checked, rows.schema, previous_rows)


def to_requests(table: Any) -> list[tuple[int, Request]]:
    """(row of the table, request) for each good row of a table that `read_rows` returned."""
    names = [name for name in INPUT_COLUMNS if name in table.column_names]
    good = np.flatnonzero(np.asarray(table[ERROR].is_null()))
    rows = table.select(names).take(good).to_pylist()
    return [(int(offset), Request(**row)) for offset, row in zip(good, rows, strict=True)]


def _manifest(index: Index, schema: Any, previous_rows: int) -> Manifest:
    columns = schema.remove(schema.get_field_index(ERROR))
    return Manifest(
        index.rows, index.bad, index.digest, list(index.problems), index.problem_count, columns, previous_rows
    )


def _sources(spec: ManifestSpec, info: TargetInfo, folder: str) -> list[Source]:
    if spec.range is not None:
        return [RangeRows(spec.range, info.num_classes)]
    assert spec.path is not None
    return open_sources(spec.path, folder)


def _fingerprint(spec: ManifestSpec, sources: list[Source], info: TargetInfo) -> str:
    """sha256 over all that the normal form depends on: the files' bytes, and what rows are checked against."""
    read_as = spec.model_dump(mode="json", exclude={"path"})
    target = [info.num_classes, info.has_null_class, info.takes_prompts, info.takes_guidance]
    hashed = hashlib.sha256(json.dumps([1, read_as, target], sort_keys=True).encode())
    for source in sources:
        if source.local is not None:
            ending = os.path.splitext(source.name)[1].lower()
            hashed.update(f"{ending} {file_sha256(source.local)}\n".encode())
    return hashed.hexdigest()


def _usable_index(destination: Storage) -> Index | None:
    index = read_index(destination)
    if index is None and destination.list("commits/"):
        raise UsageError(
            f"{destination.uri}: holds images, but its {INDEX} is gone, without which they cannot be told apart; "
            "restore it, or choose another output"
        )
    return index


def _lost(destination: Storage, index: Index) -> bool:
    """Whether parts that the index names are not there."""
    return not {part.file for part in index.parts} <= set(destination.list("manifest/"))


def _store(destination: Storage, index: Index | None, checked: Index, rows: CheckedRows, folder: str) -> None:
    """Makes the output's manifest the checked one: new, longer by the rows that are new, or only looked at anew."""
    if index is not None and _lost(destination, index):
        if index.digest != checked.digest:
            raise UsageError(
                f"{destination.uri}/manifest: files are missing, and the manifest is not the one that they came from; "
                "restore them, or choose another output"
            )
        index = None
    if index is not None and index.digest != checked.digest:
        reason = first_difference(destination, index, rows.blocks())
        if reason:
            raise UsageError(
                f"{destination.uri}: was made from another manifest: {reason}. A set can only be extended by rows "
                "behind its own; choose another output, or set output.overwrite"
            )
    known = () if index is None else index.parts
    new = rows_beyond(rows.blocks(), sum(part.rows for part in known))
    parts = write_parts(destination, new, known, folder)
    remove_debris(destination, parts)
    destination.replace(INDEX, replace(checked, parts=parts).to_json().encode())
