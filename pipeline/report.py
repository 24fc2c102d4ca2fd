"""The report of a job: report.json and, beside it, the contact sheet."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.commits import committed
from pipeline.contact_sheet import contact_sheet
from pipeline.spec import Job
from pipeline.storage import Storage
from specdiff.targets.fashion_mnist.classifier import CLASS_NAMES

FORMAT = 1
PARTS = ("metrics", "throughput", "sampler", "failures")
REPORT = "report/report.json"
SHEET = "report/contact_sheet.png"
CLASS_NAMES_OF = {"fashion-mnist": dict(enumerate(CLASS_NAMES))}
SOFTWARE = ("specdiff", "torch", "numpy", "ray", "pyarrow", "pillow", "torch-fidelity")


def write_report(storage: Storage, job: Job, run: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``report/report.json`` and ``report/contact_sheet.png``, in place of what is there.

    Args:
        storage: the data set's folder.
        job: what was asked for.
        run: what came of it: ``metrics`` (from ``evaluate``), ``throughput`` (``images``, ``images_per_s``,
            ``seconds``, ``workers``), ``sampler`` (``Stats.to_dict()`` over the whole set), ``failures``. A part that
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
    class_names = CLASS_NAMES_OF.get(job.target.name, {})
    sheet = contact_sheet(storage, records, job.name, headline(job, images, parts), class_names)
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
        "contact_sheet": None if sheet is None else SHEET,
    }
    storage.replace(REPORT, json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n")
    return report


def read_report(storage: Storage) -> dict[str, Any]:
    """The report that is there; an empty one where there is none that can be read."""
    try:
        report: dict[str, Any] = json.loads(storage.read(REPORT))
    except (FileNotFoundError, ValueError):
        return {}
    return report


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
    said = [f"{images} images", job.target.name]
    if job.target.steps is not None:
        said.append(f"{job.target.steps} steps")
    said.append("sequential" if sampler.verification == "none" else f"{sampler.verification} + {sampler.drafter}")
    if (speedup := parts["sampler"].get("sequential_speedup")) is not None:
        said.append(f"sequential speed-up {speedup:.2f}")
    if (fid := parts["metrics"].get("fid", {}).get("value")) is not None:
        said.append(f"FID {fid:.3g}")
    return " · ".join(said)


def software() -> dict[str, str]:
    """Versions of what the numbers depend on, as far as it is installed."""
    versions = {"python": platform.python_version()}
    for name in SOFTWARE:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def finite(value: Any) -> Any:
    """The same with NaN and infinities, which JSON has no words for, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
