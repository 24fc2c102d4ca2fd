"""How far a data set is, how fast it grows, and what failed; reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline.failures import read_failures
from pipeline.inventory import Inventory
from pipeline.lease import current
from pipeline.output import read_job
from pipeline.report import read_report
from pipeline.storage import Storage
from pipeline.words import counted, flaws

REASONS = 5  # reasons of failures that are listed, the most frequent


def status(uri: str) -> tuple[list[str], int]:
    """Lines for the screen, and the exit status: 0 where every row has its image, else 1.

    Raises:
        UsageError: there is no data set.
        Unavailable: the storage is out of reach.
    """
    storage = Storage(uri)
    job, rows = read_job(storage)
    inventory = Inventory.of(storage, rows, job.output.shard_size)
    share = 100 * inventory.written / rows
    lines = [f"images    {inventory.written} of {rows} ({share:.1f} %), in {storage.uri}"]
    if inventory.missing:
        lines.append(f"missing   {counted(inventory.missing, 'row')}")
    if inventory.failed or inventory.skipped:
        lines.append(f"failures  {flaws(inventory.failed, inventory.skipped)}")
    lines += [*_driver(storage), *_reasons(storage)]
    return lines, 1 if inventory.missing else inventory.exit_status


def _driver(storage: Storage) -> Iterator[str]:
    holder = current(storage)
    if holder is None or holder.released:
        yield "driver    none"
        speed = read_report(storage).get("throughput", {})
    else:
        yield f"driver    {holder}"
        speed = holder.progress
    if speed.get("images_per_s"):
        yield (
            f"speed     {speed['images_per_s']:.2f} images/s: {counted(speed['images'], 'image')} in "
            f"{speed['seconds']:.0f} s by {counted(speed['workers'], 'worker')}"
        )


def _reasons(storage: Storage) -> Iterator[str]:
    """From the end of the last run."""
    frequent = Counter((failure["kind"], failure["reason"]) for failure in read_failures(storage))
    for (kind, reason), count in frequent.most_common(REASONS):
        yield f"  {count} × {kind}: {reason}"
