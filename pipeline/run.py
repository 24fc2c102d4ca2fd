"""One run of a job, from the job file's content to the summary on the screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import specdiff
from pipeline.auto import decided
from pipeline.errors import PipelineError, Unavailable, UsageError
from pipeline.evaluation import check_evaluation, evaluate
from pipeline.failures import FAILURES, write_failures
from pipeline.inventory import Inventory
from pipeline.lease import Lease, LeasedStorage, NotHeld
from pipeline.manifest import Manifest, normalise
from pipeline.metric_text import metric_lines
from pipeline.output import (
    check_same_set,
    read_job,
    remove_set,
    stored_batch_rows,
    stored_verification,
    write_job,
)
from pipeline.report import PAGE, read_report, write_report
from pipeline.scheduler import Piece
from pipeline.signals import Interrupted, Signals
from pipeline.spec import Job, identity
from pipeline.storage import Storage
from pipeline.words import counted, flaws
from specdiff import Stats, TargetInfo
from specdiff.targets import TargetUnavailable

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A job that may run: its output is its own, and its manifest is stored there."""

    info: TargetInfo
    manifest: Manifest
    batch_rows: int


@dataclass(frozen=True)
class Settled:
    """A set to which there is nothing to do: the summary, and the exit status."""

    lines: list[str]
    exit_status: int


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
    # A finished set is found to be so without a word to other drivers.
    if (done := settled(job, limit=limit, retry_failed=retry_failed, signals=signals)) is not None:
        for line in done.lines:
            say(line)
        return done.exit_status
    with Lease(Storage(job.output.uri), job.output.lease_timeout) as lease:
        return _run(job, LeasedStorage(job.output.uri, lease), limit, retry_failed, signals, say)


def settled(job: Job, *, limit: int | None, retry_failed: bool, signals: Signals) -> Settled | None:
    """What `run` would say where it finds nothing to do, or None where there is something. Writes nothing; raises
    PipelineError as it does."""
    lines: list[str] = []
    try:
        status = _run(job, LeasedStorage(job.output.uri, None), limit, retry_failed, signals, lines.append)
    except NotHeld:
        return None
    return Settled(lines, status)


def _run(job: Job, storage: LeasedStorage, limit: int | None, retry_failed: bool, signals: Signals, say: Say) -> int:
    """`run`, in a storage that may be written to; raises NotHeld before it writes to one that may not."""
    job = _decided(job, storage, signals, say)
    prepared = prepare(job, storage)
    inventory = Inventory.of(storage, prepared.manifest.rows, job.output.shard_size)
    rows = min(limit or inventory.rows, inventory.rows)
    given_up: list[tuple[Piece, str]] = []
    generated = False
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
        given_up, generated = done.given_up, True
        if done.out_of_time:
            out_of_time = "stopped when workers.max_hours were over; the same command goes on from there"
    if generated or not storage.exists(FAILURES):
        write_failures(storage, inventory.flawed, given_up)
    if signals.received is not None:
        committed = f"{inventory.written} of {counted(inventory.rows, 'image')} committed"
        raise Interrupted(signals.received, f"stopped: {committed}; the same command goes on from there")
    report, problem = read_report(storage), ""
    if generated or not _is_current(report, job, inventory):
        lost = storage.lease().progress["lost_images"]
        parts = {"metrics": {}, **counters(inventory, lost, sorted({piece.shard for piece, _ in given_up}))}
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


def _decided(job: Job, storage: LeasedStorage, signals: Signals, say: Say) -> Job:
    """The job without `auto`; raises NotHeld where a pilot is needed in a storage that may not be written to."""
    if job.sampler.verification != "auto":
        return job
    info, _ = checked(job)
    if job.output.overwrite or stored_verification(storage) is None:
        storage.lease()
    return decided(job, info, storage, signals, say)


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
        Unavailable: the target would have to be downloaded, and the hub is out of reach.
    """
    Storage(job.output.uri)
    try:
        info = specdiff.inspect_target(job.target.name, **job.target.settings())
    except ValueError as error:
        raise UsageError(f"target: {error}") from error
    except TargetUnavailable as error:
        raise Unavailable(f"target: {error}") from error
    try:
        specdiff.check_settings(**job.sampler.settings())
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
        parts = counters(inventory, lease.progress["lost_images"], [])
        report = write_report(storage, job, {"metrics": metrics, **parts})
    return summary(storage, inventory, report), inventory.exit_status


def counters(inventory: Inventory, lost_images: int, given_up: Sequence[int]) -> dict[str, Any]:
    """What the records say, as parts of the report.

    Args:
        lost_images: that were finished and never committed, by any driver.
        given_up: shards that failed for good in the run that ends.
    """
    throughput = inventory.throughput.to_dict()
    return {
        "throughput": throughput and {**throughput, "lost_images": lost_images},
        "sampler": inventory.stats.to_dict(),
        "failures": {
            "failed": inventory.failed,
            "skipped": inventory.skipped,
            "missing": inventory.missing,
            "shards": list(given_up),
        },
    }


def summary(storage: Storage, inventory: Inventory, report: dict[str, Any]) -> list[str]:
    """What came of it, in one screen."""
    lines = [f"images         {inventory.written} of {inventory.rows}, in {storage.uri}"]
    throughput, sampler = report["throughput"], report["sampler"]
    if throughput.get("images_per_s"):
        lines.append(
            f"throughput     {throughput['images_per_s']:.2f} images/s: {counted(throughput['images'], 'image')} "
            f"in {throughput['seconds']:.0f} s by {counted(throughput['workers'], 'worker')}; "
            f"{throughput['images_per_s_per_worker']:.2f} a worker, "
            f"{throughput['images_per_s_with_start']:.2f} with start-up"
        )
    if throughput.get("device_seconds_per_1000_images"):
        shares = throughput["shares"] | throughput["shares_beside"]
        told = ", ".join(f"{name} {100 * shares[name]:.0f} %" for name in shares)
        lines.append(f"device time    {throughput['device_seconds_per_1000_images']:.0f} s for 1,000 images: {told}")
    if sampler.get("samples"):
        lines.append(
            f"sampler        {sampler['sequential_speedup']:.2f} sequential speed-up, "
            f"{sampler['block_efficiency']:.2f} steps a round, {sampler['calls_per_image']:.1f} calls and "
            f"{sampler['evaluations_per_image']:.1f} evaluations an image"
        )
    if Stats.from_dict(sampler).hardly_helped:
        lines.append(
            f"warning        speculation hardly helps here: {sampler['acceptance']:.1%} of drafts were kept (few "
            "steps, many dimensions or little noise); the images are right, but sampler.verification: none or auto "
            "makes them with fewer evaluations, see docs/when-it-helps.md"
        )
    lines += metric_lines(report["metrics"])
    lines.append(f"report         {storage.uri}/{PAGE}")
    if inventory.failed or inventory.skipped:
        lines.append(f"failures       {flaws(inventory.failed, inventory.skipped)}; see {storage.uri}/{FAILURES}")
    return lines


def _is_current(report: dict[str, Any], job: Job, inventory: Inventory) -> bool:
    """Whether a report tells all of the set as it is, and of the evaluation that the job asks for."""
    evaluation = None if job.evaluate is None else job.evaluate.model_dump(mode="json", exclude_none=True)
    if report.get("images") != inventory.written or report["settings"].get("evaluate") != evaluation:
        return False
    return bool(report["failures"]) and (bool(report["metrics"]) or not _to_be_scored(job, inventory))


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
