"""Metrics in words, for the summary on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LABEL = 15


def metric_lines(metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Each number with its conditions on a line of its own, then what is to be known about them, each thing once."""
    for name, metric in metrics.items():
        value = f"{metric['value']:.4g}"
        if metric.get("std") is not None:
            value += f" ± {metric['std']:.2g}"
        told = [f"{metric['extractor']} features"]
        if metric["reference"]:
            count = metric["reference_count"]
            told.append(f"against {metric['reference']}" + (f", {count} images" if count else ""))
        if metric.get("noise_floor") is not None:
            told.append(f"its halves {metric['noise_floor']:.4g}")
        yield f"{_label(name):<{LABEL}}{value} over {metric['count']} images ({'; '.join(told)})"
    for warning in dict.fromkeys(warning for metric in metrics.values() for warning in metric["warnings"]):
        about = [_label(name) for name, metric in metrics.items() if warning in metric["warnings"]]
        which = "" if len(about) == len(metrics) else f" ({', '.join(about)})"
        yield f"{'':<{LABEL}}note: {warning}{which}"


def _label(name: str) -> str:
    return name.removesuffix("_score")
