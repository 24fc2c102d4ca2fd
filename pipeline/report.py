"""The report of a job: report.json, and for people report.html and the contact sheet."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import specdiff
from pipeline.card import card
from pipeline.commits import committed
from pipeline.contact_sheet import contact_sheet
from pipeline.failures import read_failures
from pipeline.report_page import page
from pipeline.shown import choose
from pipeline.software import software
from pipeline.spec import Job
from pipeline.storage import Storage
from pipeline.words import counted

FORMAT = 1
PARTS = ("metrics", "throughput", "sampler", "failures")
REPORT = "report/report.json"
PAGE = "report/report.html"
SHEET = "report/contact_sheet.png"


def write_report(storage: Storage, job: Job, run: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``report/report.json``, ``report.html`` and ``contact_sheet.png``, in place of what is there.

    Args:
        storage: the data set's folder.
        job: what was asked for.
        run: what came of it: ``metrics`` (from ``evaluate``), ``throughput`` (``Throughput.to_dict()`` with
            ``lost_images``), ``sampler`` (``Stats.to_dict()``), each over the whole set, and ``failures``. A part that
            is left out, as by a command that evaluates without generating, keeps what the report says already.

    Returns:
        The report, as written.

    Raises:
        PipelineError: a commit record or an image cannot be read.
        Unavailable: the storage is out of reach.
    """
    records = committed(storage)
    previous = read_report(storage)
    parts = {part: run.get(part, previous.get(part, {})) for part in PARTS}
    if "sampler" in run:
        parts["sampler"] = with_costs_per_image(run["sampler"])
    images = sum(record.written for record in records)
    class_names = class_names_of(job)
    chosen = choose(storage, records, class_names)
    sheet = contact_sheet(chosen, job.name, headline(job, images, parts), class_names)
    if sheet is not None:
        storage.replace(SHEET, sheet)
    report = {
        "format": FORMAT,
        "name": job.name,
        "written_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "images": images,
        **{part: finite(value) for part, value in parts.items()},
        "settings": job.model_dump(mode="json", exclude_none=True),
        "software": software(),
        "card": card(storage, records),
        "contact_sheet": None if sheet is None else SHEET,
    }
    storage.replace(REPORT, json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n")
    html = page(report, chosen, class_names, read_failures(storage), storage.uri)
    storage.replace(PAGE, html.encode())
    return report


def read_report(storage: Storage) -> dict[str, Any]:
    """The report that is there; an empty one where there is none that can be read."""
    try:
        report: dict[str, Any] = json.loads(storage.read(REPORT))
    except (FileNotFoundError, ValueError):
        return {}
    return report


def class_names_of(job: Job) -> dict[int, str]:
    """Names of the target's classes by number; none where it has none, or is not known here."""
    try:
        info = specdiff.inspect_target(job.target.name, **job.target.settings())
    except ValueError:
        return {}
    return dict(enumerate(info.class_names))


def with_costs_per_image(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Sampler statistics, and with them the sequential calls and the evaluations of an image, on average."""
    images = stats["samples"]
    return {
        **stats,
        "calls_per_image": stats["calls"] / images if images else None,
        "evaluations_per_image": stats["evaluations"] / images if images else None,
    }


def headline(job: Job, images: int, parts: Mapping[str, Any]) -> str:
    """What was sampled and how, and what came of it, in one line."""
    sampler = job.sampler
    said = [counted(images, "image"), job.target.name]
    if job.target.steps is not None:
        said.append(counted(job.target.steps, "step"))
    said.append("sequential" if sampler.verification == "none" else f"{sampler.verification} + {sampler.drafter}")
    if (speedup := parts["sampler"].get("sequential_speedup")) is not None:
        said.append(f"sequential speed-up {speedup:.2f}")
    if (fid := parts["metrics"].get("fid", {}).get("value")) is not None:
        said.append(f"FID {fid:.3g}")
    return " · ".join(said)


def finite(value: Any) -> Any:
    """The same with NaN and infinities, which JSON has no words for, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
