"""One run of a job, from the job file's content to the summary on the screen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import specdiff
from pipeline.errors import PipelineError, UsageError
from pipeline.evaluation import check_evaluation, evaluate
from pipeline.failures import FAILURES, write_failures
from pipeline.inventory import Inventory
from pipeline.lease import Lease, LeasedStorage, NotHeld
from pipeline.manifest import Manifest, normalise
from pipeline.metric_text import metric_lines
from pipeline.output import check_same_set, read_job, remove_set, stored_batch_rows, write_job
from pipeline.report import read_report, write_report
from pipeline.scheduler import Piece
from pipeline.signals import Interrupted, Signals
from pipeline.spec import Job, identity
from pipeline.storage import Storage
from specdiff import TargetInfo

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A job that may run: its output is its own, and its manifest is stored there."""

    info: TargetInfo
    manifest: Manifest
    batch_rows: int


def run(job: Job, *, limit: int | None, retry_failed: bool, signals: Signals, say: Say) -> int:
    """Makes what is missing, evaluates the set, writes the report, and prints a summary.

    Args:
        limit: only the first so many rows; all of them for None.
        retry_failed: whether rows that failed in earlier runs are tried again.
        signals: entered by the caller.
        say: prints a line for the user.

    Returns:
        Exit status: 0, or 1 where rows or shards failed or were skipped, time was over, or the evaluation failed.

    Raises:
        PipelineError: it could not be done; its exit code says why.
        Interrupted: a signal ended it; the same command goes on.
    """
    asked = (limit, retry_failed)
    lines: list[str] = []
    try:
        # A finished set is found to be so without a word to other drivers.
        status = _run(job, LeasedStorage(job.output.uri, None), *asked, signals, lines.append)
    except NotHeld:
        with Lease(Storage(job.output.uri), job.output.lease_timeout) as lease:
            return _run(job, LeasedStorage(job.output.uri, lease), *asked, signals, say)
    for line in lines:
        say(line)
    return status


def _run(job: Job, storage: LeasedStorage, limit: int | None, retry_failed: bool, signals: Signals, say: Say) -> int:
    """`run`, in a storage that may be written to; raises NotHeld before it writes to one that may not."""
    prepared = prepare(job, storage)
    inventory = Inventory.of(storage, prepared.manifest.rows, job.output.shard_size)
    rows = min(limit or inventory.rows, inventory.rows)
    given_up: list[tuple[Piece, str]] = []
    throughput: dict[str, Any] = {}
    out_of_time = ""
    if next(inventory.pieces(rows, retry_failed), None) is None:
        say("nothing to generate: every row asked for is done")
    else:
        # Imported only here: a run that finds nothing to do does without Ray.
        with signals.held():
            from pipeline.driver import generate
        signals.check()
        storage.lease()
        done = generate(job, storage, inventory, prepared.batch_rows, rows, retry_failed, signals)
        given_up = done.given_up
        throughput = done.throughput()
        if done.out_of_time:
            out_of_time = "stopped when workers.max_hours were over; the same command goes on from there"
    if throughput or not storage.exists(FAILURES):
        write_failures(storage, inventory.flawed, given_up)
    if signals.received is not None:
        committed = f"{inventory.written} of {inventory.rows} images are committed"
        raise Interrupted(signals.received, f"stopped: {committed}; the same command goes on from there")
    report, problem = read_report(storage), ""
    if throughput or not _is_current(report, job, inventory):
        storage.lease()
        parts: dict[str, Any] = {"metrics": {}, "sampler": inventory.stats.to_dict()}
        parts["failures"] = {
            "failed": inventory.failed,
            "skipped": inventory.skipped,
            "missing": inventory.missing,
            "shards": sorted({piece.shard for piece, _ in given_up}),
        }
        if throughput:
            parts["throughput"] = throughput
        if _to_be_scored(job, inventory):
            parts["metrics"], problem = _score(job, storage)
        report = write_report(storage, job, parts)
    for line in summary(storage, inventory, report):
        say(line)
    for line in filter(
        None, [*(f"shard {piece.shard} failed: {why}" for piece, why in given_up), problem, out_of_time]
    ):
        say(line)
    return 1 if given_up or problem or out_of_time else inventory.exit_status


def prepare(job: Job, storage: Storage) -> Prepared:
    """Checks everything that can be checked without a device, and stores manifest and `job.json`.

    Raises:
        UsageError: target, manifest or evaluation are wrong, or the output holds another set.
        Unavailable: the storage is out of reach.
    """
    info, batch_rows = checked(job)
    if job.output.overwrite:
        remove_set(storage)
    if job.sampler.batch_rows is None:
        # A set goes on with its own, whatever the lanes are now: its bytes depend on the rows of a call alone.
        batch_rows = stored_batch_rows(storage) or batch_rows
    check_same_set(storage, identity(job, info, batch_rows, ""))
    manifest = normalise(job, info, storage)
    counts = {"rows": manifest.rows, "bad": manifest.bad, "digest": manifest.digest}
    write_job(storage, job, info, identity(job, info, batch_rows, manifest.digest), counts)
    return Prepared(info, manifest, batch_rows)


def checked(job: Job) -> tuple[TargetInfo, int]:
    """The job's target, and the rows of every network call.

    Raises:
        UsageError: an unknown target or settings that it refuses, an output of a kind that there is none of, or an
            evaluation that could not be done.
    """
    Storage(job.output.uri)
    try:
        info = specdiff.inspect_target(job.target.name, **job.target.settings())
    except ValueError as error:
        raise UsageError(f"target: {error}") from error
    try:
        specdiff.check_settings(**job.sampler.model_dump())
    except ValueError as error:
        raise UsageError(f"sampler: {error}") from error
    if job.evaluate is not None:
        check_evaluation(job.evaluate)
    sampler = job.sampler
    drafts = 0 if sampler.verification == "none" else sampler.draft_length
    return info, sampler.batch_rows or sampler.lanes * (drafts + 1)


def evaluate_again(uri: str, partial: bool) -> tuple[list[str], int]:
    """Scores a data set that is there and writes its report anew. Returns the summary and the exit status.

    The lease is held for it, so that no driver writes another report meanwhile.

    Raises:
        UsageError: there is no data set, or its job asks for no evaluation.
        Unavailable: another driver is at work there, or the storage is out of reach.
        PipelineError: rows are missing, without `partial`.
    """
    job, rows = read_job(Storage(uri))
    if job.evaluate is None:
        raise UsageError(f"{uri}: its job has no `evaluate` section; add one and run it again")
    with Lease(Storage(uri), job.output.lease_timeout) as lease:
        storage = LeasedStorage(uri, lease)
        inventory = Inventory.of(storage, rows, job.output.shard_size)
        metrics = evaluate(storage, job, partial, *_devices(job))
        report = write_report(storage, job, {"metrics": metrics, "sampler": inventory.stats.to_dict()})
    return summary(storage, inventory, report), inventory.exit_status


def summary(storage: Storage, inventory: Inventory, report: dict[str, Any]) -> list[str]:
    """What came of it, in one screen."""
    lines = [f"images         {inventory.written} of {inventory.rows}, in {storage.uri}"]
    throughput, sampler = report["throughput"], report["sampler"]
    if throughput:
        lines.append(
            f"throughput     {throughput['images_per_s']:.2f} images/s: {throughput['images']} images "
            f"in {throughput['seconds']:.0f} s by {throughput['workers']} workers"
        )
    if sampler.get("samples"):
        lines.append(
            f"sampler        {sampler['sequential_speedup']:.2f} sequential speed-up, "
            f"{sampler['block_efficiency']:.2f} steps a round, {sampler['calls_per_image']:.1f} calls and "
            f"{sampler['evaluations_per_image']:.1f} evaluations an image"
        )
    lines += metric_lines(report["metrics"])
    if report["contact_sheet"]:
        lines.append(f"contact sheet  {storage.uri}/{report['contact_sheet']}")
    if inventory.failed or inventory.skipped:
        lines.append(
            f"failures       {inventory.failed} rows failed, {inventory.skipped} were skipped as bad; "
            f"see {storage.uri}/{FAILURES}"
        )
    return lines


def _is_current(report: dict[str, Any], job: Job, inventory: Inventory) -> bool:
    """Whether a report tells all of the set as it is, and of the evaluation that the job asks for."""
    evaluation = None if job.evaluate is None else job.evaluate.model_dump(mode="json", exclude_none=True)
    if report.get("images") != inventory.written or report["settings"].get("evaluate") != evaluation:
        return False
    return bool(report["metrics"]) or not _to_be_scored(job, inventory)


def _to_be_scored(job: Job, inventory: Inventory) -> bool:
    """Whether the job asks for an evaluation, and there are the images for it."""
    whole = inventory.written + inventory.skipped == inventory.rows
    return job.evaluate is not None and (whole or job.evaluate.partial)


def _score(job: Job, storage: Storage) -> tuple[dict[str, Any], str]:
    """The metrics, or none and why the evaluation failed."""
    try:
        return evaluate(storage, job, False, *_devices(job)), ""
    except PipelineError as error:
        return {}, f"evaluation failed, but the images are there: {error}"


def _devices(job: Job) -> tuple[int, str]:
    """Threads and device of the evaluation, which has what the workers had."""
    threads = min(job.workers.count * job.workers.threads, os.cpu_count() or 1)
    return threads, "cuda" if torch.cuda.is_available() else "cpu"
