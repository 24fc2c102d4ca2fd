"""Audit of a data set against its manifest: every row once, every file as it was written, every picture readable."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from pipeline.commits import CommitRecord, stream_committed
from pipeline.damage import reading
from pipeline.decoding import decode
from pipeline.encoding import LOSSLESS, pixel_sha256
from pipeline.errors import PipelineError, UsageError
from pipeline.manifest import read_rows, to_requests
from pipeline.manifest_store import Index, read_index
from pipeline.output import read_job, stored_batch_rows
from pipeline.rowchecks import ERROR
from pipeline.spec import Job
from pipeline.storage import Storage
from pipeline.words import counted

SHOWN = 20  # problems that are listed
DEEP_ROWS = 32  # made again by --deep

_MISSING, _WRITTEN, _FAILED, _SKIPPED = range(4)


@dataclass
class Findings:
    """What an audit came to.

    Attributes:
        rows: of the manifest.
        counts: rows that are missing, written, failed and skipped, in this order.
        problems: the first of what is wrong, in words; problem_count: of all.
        notes: what is no problem, but worth knowing.
    """

    rows: int
    counts: list[int] = field(default_factory=lambda: [0] * 4)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < SHOWN:
            self.problems.append(problem)

    @property
    def whole(self) -> bool:
        return not self.problem_count and self.counts[_WRITTEN] == self.rows

    def lines(self) -> Iterator[str]:
        missing, written, failed, skipped = self.counts
        yield f"rows  {self.rows}: {written} have an image, {failed} failed, {skipped} are bad, {missing} are missing"
        yield from self.problems
        if self.problem_count > len(self.problems):
            yield f"… and {self.problem_count - len(self.problems)} problems more"
        yield from self.notes
        yield "whole" if self.whole else "NOT WHOLE"


def verify(uri: str, *, deep: bool) -> Findings:
    """Audits a data set. A byte a row is held, and one shard.

    Args:
        deep: whether a sample of rows is made again and compared.

    Raises:
        UsageError: there is no data set.
        Unavailable: the storage is out of reach.
    """
    storage = Storage(uri)
    job, rows = read_job(storage)
    index = read_index(storage)
    if index is None:
        raise UsageError(f"{storage.uri}: its manifest is gone, without which it cannot be told what should be there")
    findings = Findings(rows)
    if not _check_manifest(storage, index, rows, findings):
        return findings
    state = bytearray(rows)
    named: set[str] = set()
    records: list[CommitRecord] = []
    chance = random.Random(0)
    for count, record in enumerate(stream_committed(storage, lambda error: findings.add(str(error)))):
        if record.file in named:
            findings.add(f"{record.file} belongs to two records, the second of them {record.path}")
        named.add(record.file)
        _check_record(storage, job, record, state, findings)
        if deep and count < DEEP_ROWS:
            records.append(record)
        elif deep and (slot := chance.randrange(count + 1)) < DEEP_ROWS:  # every record is as likely to be looked at
            records[slot] = record
    findings.counts = [state.count(kind) for kind in range(4)]
    if findings.counts[_MISSING]:
        findings.add(f"rows without a record: {_ranges(state)}; `specdiff run` makes them")
    if debris := [path for path in storage.list("data/") if path not in named]:
        findings.notes.append(
            f"{counted(len(debris), 'file')} in data/ that no record names, as {debris[0]}: "
            "`specdiff clean` removes ours"
        )
    if deep and not findings.problem_count:
        _check_again(storage, job, records, findings)
    return findings


def _check_manifest(storage: Storage, index: Index, rows: int, findings: Findings) -> bool:
    if index.rows != rows:
        findings.add(f"manifest.json speaks of {index.rows} rows, job.json of {rows}")
    for part in index.parts:
        try:
            if storage.sha256(part.file) != part.sha256:
                findings.add(f"{part.file} is not what was written")
        except FileNotFoundError:
            findings.add(f"{part.file} is gone")
    return not findings.problem_count


def _check_record(storage: Storage, job: Job, record: CommitRecord, state: bytearray, findings: Findings) -> None:
    """Adds what a record and its file have wrong, and marks its rows."""
    size = job.output.shard_size
    numbers = record.row_numbers
    if not len(numbers) or numbers[0] // size != record.shard or numbers[-1] // size != record.shard:
        findings.add(f"{record.path} covers rows of another shard")
        return
    if numbers[-1] >= len(state):
        findings.add(f"{record.path} covers rows beyond the manifest's {len(state)}")
        return
    table = read_rows(storage, numbers[0], numbers[-1] - numbers[0] + 1)
    table = table.take(pa.array([row - numbers[0] for row in numbers], pa.int64()))
    bad = {row for row, error in zip(numbers, table[ERROR].to_pylist(), strict=True) if error is not None}
    failed = {each.row for each in record.failed}
    written = [row for row in numbers if row not in bad and row not in failed]
    if len(bad) != record.skipped or len(written) != record.written or failed & bad or not failed <= set(numbers):
        findings.add(f"{record.path} does not account for its rows")
        return
    for rows, kind in ((written, _WRITTEN), (failed, _FAILED), (bad, _SKIPPED)):
        for row in rows:
            if state[row] not in (_MISSING, _FAILED):
                findings.add(f"row {row} is recorded twice, the second time in {record.path}")
            state[row] = kind
    position = {row: i for i, row in enumerate(numbers)}
    expected = table.drop_columns([ERROR]).take(pa.array([position[row] for row in written], pa.int64()))
    try:
        for problem in _file_problems(storage, record, expected, job.output.image_format):
            findings.add(f"{record.file}: {problem}")
    except PipelineError as error:
        findings.add(str(error))


def _file_problems(storage: Storage, record: CommitRecord, expected: Any, image_format: str) -> Iterator[str]:
    try:
        found = storage.sha256(record.file)
    except FileNotFoundError:
        yield "is gone"
        return
    if found != record.file_sha256:
        yield f"has sha256 {found}, and {record.file_sha256} was written"
        return
    with storage.open(record.file) as file, reading(storage, record.file):
        parquet = pq.ParquetFile(file)
        if parquet.metadata.num_rows != len(expected):
            yield f"holds {parquet.metadata.num_rows} rows, not {len(expected)}"
            return
        row = 0
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group)
            rows = expected.slice(row, len(table))
            row += len(table)
            if not table.select(rows.column_names).equals(rows):
                yield "its rows are not the manifest's"
            for image in table.select(["key", "image", "width", "height", "sha256"]).to_pylist():
                yield from _image_problems(image, image_format)


def _image_problems(row: dict[str, Any], image_format: str) -> Iterator[str]:
    try:
        image = decode(row["image"]["bytes"], f"key {row['key']}")
    except PipelineError as error:
        yield str(error)
        return
    if image.format != image_format.upper():
        yield f"key {row['key']}: is {image.format}, not {image_format}"
    elif image.size != (row["width"], row["height"]):
        yield f"key {row['key']}: is of another size than recorded"
    elif image_format in LOSSLESS and not any(_sha256(image, mode) == row["sha256"] for mode in ("L", "RGB", "RGBA")):
        yield f"key {row['key']}: its pixels are not those that were recorded"


def _sha256(image: Image.Image, mode: str) -> str:
    """Of the pixels as they were before WebP, which has no grey and drops an alpha channel that hides nothing."""
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()


def _ranges(state: bytearray) -> str:
    """The first few ranges of rows that are missing."""
    found: list[str] = []
    row = state.find(_MISSING)
    while row >= 0 and len(found) < 5:
        end = next((each for each in range(row, len(state)) if state[each] != _MISSING), len(state))
        found.append(f"{row}–{end - 1}" if end - row > 1 else str(row))
        row = state.find(_MISSING, end)
    return ", ".join(found) + (", …" if row >= 0 else "")


def _check_again(storage: Storage, job: Job, records: list[CommitRecord], findings: Findings) -> None:
    """Makes some rows again, one of each record or more where there are few, and compares pixels and costs."""
    # Imported here: nothing else of an audit needs the sampler.
    from pipeline.run import checked
    from pipeline.software import software
    from pipeline.worker import device_kind, sampler_of

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    here, packages = device_kind(device), software()
    chosen: dict[str, tuple[CommitRecord, dict[str, Any]]] = {}
    requests = []
    for record in records:
        if reason := _incomparable(record, here, packages):
            findings.notes.append(f"{record.path}: rows were not made again, because {reason}")
            continue
        with storage.open(record.file) as file:
            stored = pq.read_table(file, columns=["key", "sha256", "calls", "evaluations"]).to_pylist()
        chance = random.Random(record.path)
        picked = chance.sample(stored, min(len(stored), -(-DEEP_ROWS // len(records))))
        chosen |= {row["key"]: (record, row) for row in picked}
        first, last = record.row_numbers[0], record.row_numbers[-1]
        requests += [
            request
            for _, request in to_requests(read_rows(storage, first, last - first + 1))
            if request.key in chosen and chosen[request.key][0] is record
        ]
    if not requests:
        return
    torch.set_num_threads(job.workers.threads)
    checked(job)
    batch_rows = stored_batch_rows(storage)
    assert batch_rows is not None
    for sample in sampler_of(job, batch_rows, device).stream(requests):
        record, row = chosen[sample.key]
        sha256 = None if sample.image is None else pixel_sha256(sample.image)
        made = {"key": sample.key, "sha256": sha256, "calls": sample.calls, "evaluations": sample.evaluations}
        if made != row:
            findings.add(f"{record.file}: key {sample.key}: made again it is another picture, or at another cost")
    if not findings.problem_count:
        findings.notes.append(f"{counted(len(requests), 'row')} made again: the same as they were")


def _incomparable(record: CommitRecord, here: str, packages: dict[str, str]) -> str:
    """Why the same bytes cannot be expected here, or ''."""
    if record.device != here:
        return f"they were made on {record.device}, and this is {here}"
    for name in ("specdiff", "torch"):
        if record.software.get(name) != packages.get(name):
            return f"they were made with {name} {record.software.get(name)}, and this is {packages.get(name)}"
    return ""
