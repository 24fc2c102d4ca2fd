"""The report as one page of HTML that needs nothing but itself."""

from __future__ import annotations

import base64
import io
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, Undefined
from PIL import Image

from pipeline import charts
from pipeline.shown import Shown, name_of
from pipeline.words import counted
from specdiff import Stats

PIXELATED = 96  # images of at most so many pixels are enlarged pixel by pixel
REASONS, FAILED_ROWS = 12, 20  # most that are listed
METRICS = {
    "fid": "FID",
    "inception_score": "Inception Score",
    "kid": "KID",
    "precision": "Precision",
    "recall": "Recall",
}
PLAIN = {"value", "std", "count", "extractor", "reference", "reference_count", "noise_floor", "warnings", "per_class"}
PHASES = {
    "network": "network",
    "coupling": "drafting and verifying",
    "idle": "waiting for rows",
    "start": "start-up",
}


@dataclass(frozen=True)
class Group:
    """Images under one heading: a class, a prompt, or '' for none."""

    heading: str
    images: Sequence[Mapping[str, Any]]
    is_class: bool = False


def page(
    report: Mapping[str, Any],
    chosen: Sequence[Shown],
    class_names: Mapping[int, str],
    failures: Iterable[Mapping[str, Any]],
    uri: str,
) -> str:
    """The page.

    Args:
        report: what `report.json` holds.
        chosen: the images that are shown, in order.
        class_names: names of the target's classes, as far as it has any.
        failures: the lines of `failures.jsonl`.
        uri: where the set lies.
    """
    sampler, throughput, settings = report["sampler"], report["throughput"], report["settings"]
    reasons, listed = _failures(failures)
    template = _environment().get_template("report.html")
    return template.render(
        report=report,
        uri=uri,
        made=f"{datetime.fromisoformat(report['written_at']):%d %B %Y, %H:%M} UTC",
        standing=_standing(report),
        how=_how(report),
        groups=_groups(chosen, class_names),
        pixelated=all(max(each.image.size) <= PIXELATED for each in chosen),
        metrics=_metrics(report["metrics"], class_names),
        throughput=throughput,
        phases=PHASES,
        course=charts.course(throughput["runs"]) if throughput.get("runs") else None,
        sampler=sampler,
        plots=_plots(sampler, settings["sampler"]["draft_length"]),
        reasons=reasons,
        failed=listed,
        job=yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100),
        card=report["card"],
    )


def _told(told: Callable[..., str]) -> Callable[..., str]:
    """The same for figures that a report of another version lacks; number and unit stay on one line."""
    return lambda value, *more: told(None if isinstance(value, Undefined) else value, *more).replace(" ", "\u00a0")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipeline"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: _told(told) for name, told in TOLD.items()}
    environment.filters |= {"python": repr, "shell": shlex.quote}
    environment.globals["counted"] = counted
    return environment


def number(value: float | None, digits: int = 3) -> str:
    """Whole numbers in full, others with so many digits: 1,024; 0.0123; –."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def percent(share: float | None) -> str:
    """0.0123 → 1.2 %."""
    if share is None:
        return "–"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def size(count: float | None) -> str:
    """Bytes in the unit that suits them."""
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def duration(seconds: float | None) -> str:
    """Seconds in words of a clock."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


TOLD: dict[str, Callable[..., str]] = {"number": number, "percent": percent, "size": size, "duration": duration}


def _standing(report: Mapping[str, Any]) -> dict[str, str]:
    """Whether the set is whole, in a word that decides its colour and in a sentence."""
    failures, rows, images = report["failures"], report["card"]["rows"], report["images"]
    failed, skipped = failures.get("failed", 0), failures.get("skipped", 0)
    missing = failures.get("missing", 0)
    if failed or skipped or failures.get("shards"):
        parts = [f"{counted(failed, 'row')} failed"] if failed else []
        parts += [f"{counted(skipped, 'row')} skipped as bad"] if skipped else []
        parts += [f"{missing} missing"] if missing else []
        return {"state": "bad", "word": "Failures", "told": ", ".join(parts)}
    if missing:
        told = f"{images:,} of {rows or images + missing:,} rows so far"
        return {"state": "part", "word": "Incomplete", "told": told}
    told = "it has its image" if rows == 1 else f"all {rows or images:,} have their image"
    return {"state": "whole", "word": "Whole", "told": f"{counted(rows or images, 'row')}, {told}"}


def _how(report: Mapping[str, Any]) -> str:
    """Target and sampler in one line."""
    settings, made = report["settings"], report["card"]["identity"]
    target, sampler = settings["target"], settings["sampler"] | made.get("sampler", {})
    steps = target.get("steps") or made.get("target", {}).get("steps")
    said = [target["name"], *([counted(steps, "step")] if steps else [])]
    if sampler["verification"] == "none":
        return ", ".join([*said, "sequential sampler"])
    gain = "" if sampler["gain"] == "none" else f", {sampler['gain']} gain"
    return ", ".join(said) + (
        f", {sampler['verification']} verification of {counted(sampler['draft_length'], 'draft')} a round by the "
        f"{sampler['drafter']} drafter{gain}"
    )


def _groups(chosen: Sequence[Shown], class_names: Mapping[int, str]) -> list[Group]:
    """By class; else by prompt, where prompts have several images; else all under one heading."""
    labelled = any(each.label is not None for each in chosen)
    if labelled:
        return [
            Group(name_of(label, class_names), [_figure(each) for each in group], is_class=True)
            for label, group in groupby(chosen, key=lambda each: each.label)
        ]
    prompts = Counter(each.prompt for each in chosen)
    several = {prompt for prompt, count in prompts.items() if prompt is not None and count > 1}
    groups = [
        Group(prompt, [_figure(each) for each in chosen if each.prompt == prompt])
        for prompt in prompts
        if prompt is not None and prompt in several
    ]
    alone = [_figure(each, caption=each.prompt or "") for each in chosen if each.prompt not in several]
    return groups + ([Group("", alone)] if alone else [])


def _figure(shown: Shown, caption: str = "") -> dict[str, Any]:
    return {"source": _data_uri(shown.image), "seed": shown.seed, "key": shown.key, "caption": caption}


def _data_uri(image: Image.Image) -> str:
    """Small images without loss, larger ones as a browser needs them."""
    buffer = io.BytesIO()
    if max(image.size) <= PIXELATED:
        kind, grey = "png", image.convert("L")
        picture = grey if grey.convert("RGB").tobytes() == image.tobytes() else image
        picture.save(buffer, "PNG", optimize=True)
    else:
        kind = "webp"
        image.save(buffer, "WEBP", quality=86)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _metrics(metrics: Mapping[str, Any], class_names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Each metric with its conditions; what else it says under `more`."""
    found = []
    for name, metric in metrics.items():
        by_class = metric.get("per_class") or {}
        largest = max((value for value in by_class.values() if value is not None), default=0)
        found.append(
            {
                "name": METRICS.get(name, name.replace("_", " ")),
                "less_is_better": name in ("fid", "kid"),
                "value": metric.get("value"),
                "std": metric.get("std"),
                "count": metric.get("count"),
                "extractor": metric.get("extractor"),
                "reference": metric.get("reference"),
                "reference_count": metric.get("reference_count"),
                "noise_floor": metric.get("noise_floor"),
                "warnings": metric.get("warnings") or [],
                "more": _flat({key: value for key, value in metric.items() if key not in PLAIN}),
                "per_class": [
                    {"name": _class_name(label, class_names), "value": value, "share": (value or 0) / largest}
                    for label, value in by_class.items()
                    if largest
                ],
            }
        )
    return found


def _class_name(label: str | int, class_names: Mapping[int, str]) -> str:
    return name_of(int(label), class_names) if str(label).isdigit() else str(label)


def _plots(sampler: Mapping[str, Any], draft_length: int) -> list[dict[str, Any]]:
    """Charts of what drafts did, each with its heading and what it shows; none without drafts."""
    stats = Stats.from_dict(dict(sampler))
    plots = []
    along = stats.along()
    if any(each is not None for each in along["block_efficiency"]):
        plots += [
            ("Steps a round", "How far a round gets, by where in the trajectory it begins.",
             charts.block_efficiency(along, draft_length)),
            ("Distance of drafts, δ", "Mean distance from the target, in standard deviations of the step.",
             charts.distance(along)),
        ]  # fmt: skip
    if any(stats.drafted_by_position):
        kept = [
            accepted / drafted if drafted else None
            for accepted, drafted in zip(stats.accepted_by_position, stats.drafted_by_position, strict=True)
        ]
        plots.append(("Drafts kept", "Share of drafts kept, by their position in the block.", charts.acceptance(kept)))
    return [{"heading": heading, "told": told, "chart": chart} for heading, told, chart in plots]


def _failures(failures: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Reasons by how often they occur, and the first rows."""
    counts: Counter[tuple[str, str]] = Counter()
    listed: list[Mapping[str, Any]] = []
    for failure in failures:
        counts[failure["kind"], failure["reason"]] += 1
        if len(listed) < FAILED_ROWS:
            listed.append(failure)
    frequent = [{"kind": kind, "reason": why, "count": count} for (kind, why), count in counts.most_common(REASONS)]
    return {"total": counts.total(), "frequent": frequent, "others": len(counts) - len(frequent)}, listed


def _flat(values: Mapping[str, Any], at: str = "") -> list[tuple[str, str]]:
    """Nested settings as ("sampler.lanes", "16")."""
    flat: list[tuple[str, str]] = []
    for key, value in values.items():
        path = f"{at}.{key}" if at else str(key)
        if isinstance(value, Mapping):
            flat += _flat(value, path)
        elif isinstance(value, bool):
            flat.append((path, str(value).lower()))
        elif isinstance(value, float):
            flat.append((path, f"{value:g}"))
        else:
            flat.append((path, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return flat
