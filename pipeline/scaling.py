"""`specdiff bench --workers`: the whole job at several numbers of workers, and how its throughput grows with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import PipelineError, UsageError
from pipeline.report import read_report
from pipeline.run import run
from pipeline.scratch import scratch_folder
from pipeline.signals import Signals
from pipeline.spec import Job
from pipeline.storage import Storage
from specdiff.bench_report import aligned
from specdiff.environment import environment

SHARDS_A_WORKER = 4  # at least, so that the last ones to finish weigh little


def scaling(
    job: Job, folder: Path, counts: Sequence[int], images: int, signals: Signals, say: Callable[[str], None]
) -> None:
    """Runs the job into folders that are removed again, and writes `scaling.json` and `scaling.txt`.

    Strong scaling makes the same rows with more workers, weak scaling `images` rows for each worker. Nothing is
    evaluated. Each point is a run of the pipeline as a user starts it, Ray's start included.

    Args:
        folder: where the results go; made where it is not there.
        counts: numbers of workers; the least is what the others are held against.
        images: rows of strong scaling, and of a worker in weak scaling.
        signals: entered by the caller.

    Raises:
        UsageError: the job is wrong, or has too few rows.
        PipelineError: a run failed, or made less than all of its images.
    """
    counts = sorted(set(counts))
    shard_size = max(1, images // (SHARDS_A_WORKER * counts[-1]))
    points: dict[tuple[int, int], dict[str, Any]] = {}
    for rows, workers in [(images, count) for count in counts] + [(images * count, count) for count in counts]:
        if (rows, workers) not in points:
            say(f"running   {rows} rows, workers {workers}")
            points[rows, workers] = _point(job, rows, workers, shard_size, signals)
    report = {
        "format": 1,
        "job": job.name,
        "target": job.target.name,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "shard_size": shard_size,
        "settings": job.model_dump(mode="json", exclude_none=True, include={"target", "sampler", "workers"}),
        "strong": _curve([(count, points[images, count]) for count in counts]),
        "weak": _curve([(count, points[images * count, count]) for count in counts]),
        **environment(torch.device("cpu" if job.workers.gpus == 0 or not torch.cuda.is_available() else "cuda")),
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = table(report)
    (folder / "scaling.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    (folder / "scaling.txt").write_text(text + "\n")
    say(text)
    say(f"written to {folder}")


def table(report: dict[str, Any]) -> str:
    """Strong and weak scaling as one aligned table."""
    cells = [
        ["scaling", "workers", "rows", "images/s", "×", "efficiency", "with start-up", "device-s/1,000", "idle"],
        *(
            [
                kind,
                str(row["workers"]) + ("" if row["at_work"] == row["workers"] else f" ({row['at_work']} at work)"),
                str(row["images"]),
                f"{row['images_per_s']:.2f}",
                f"{row['speedup']:.2f}",
                f"{100 * row['efficiency']:.0f} %",
                f"{row['images_per_s_with_start']:.2f}",
                f"{row['device_seconds_per_1000_images']:.0f}",
                f"{100 * row['shares']['idle']:.0f} %",
            ]
            for kind in ("strong", "weak")
            for row in report[kind]
        ),
    ]
    return "\n".join(aligned(cells, numbers=True))


def _point(job: Job, rows: int, workers: int, shard_size: int, signals: Signals) -> dict[str, Any]:
    """The throughput of one run."""
    with scratch_folder() as folder:
        changes: dict[str, Any] = {
            "output": job.output.model_copy(update={"uri": folder, "shard_size": shard_size, "overwrite": False}),
            "workers": job.workers.model_copy(update={"count": workers, "min": None, "max": None, "max_hours": None}),
            "evaluate": None,
        }
        if job.manifest.range is not None:  # as many rows as it takes
            longer = job.manifest.range.model_copy(update={"count": rows})
            changes["manifest"] = job.manifest.model_copy(update={"range": longer})
        said: list[str] = []
        status = run(job.model_copy(update=changes), limit=rows, retry_failed=False, signals=signals, say=said.append)
        report = read_report(Storage(folder))
    if status:
        raise PipelineError(f"the run with workers.count {workers} did not end well:\n" + "\n".join(said))
    if report["images"] < rows:
        raise UsageError(f"manifest: {report['images']} rows, and this needs {rows}; name fewer images, or more rows")
    throughput: dict[str, Any] = report["throughput"]
    return {key: value for key, value in throughput.items() if key not in ("runs", "devices")}


def _curve(points: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each point with its speed-up over the first, and that as a share of what so many workers could give at best."""
    least, first = points[0]
    curve = []
    for workers, point in points:
        speedup = point["images_per_s"] / first["images_per_s"]
        measured = {**point, "workers": workers, "at_work": point["workers"]}
        curve.append({**measured, "speedup": speedup, "efficiency": speedup * least / workers})
    return curve
