"""The report's charts: SVG by matplotlib, whose colours and type are the page's own, in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

# matplotlib draws in these colours; the page's style sheet says what they are.
_COLOURS = {"#0a0001": "ink", "#0a0002": "muted", "#0a0003": "line", "#0a0004": "accent", "#0a0005": "second"}
INK, MUTED, LINE, ACCENT, SECOND = _COLOURS
SIZE = (4.9, 2.75)  # inches at 72 points: about as wide as a phone, so that type is as large there as elsewhere

_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 11,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.0,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


def course(runs: Sequence[Mapping[str, Any]]) -> Markup:
    """Images a second over the time that was worked, run after run."""

    def draw(axes: Any) -> None:
        offset = 0.0
        for i, run in enumerate(runs):
            edges = [offset + j * run["slice_s"] for j in range(len(run["images_per_s"]) + 1)]
            edges[-1] = max(min(edges[-1], offset + run["seconds_with_start"]), edges[-2])
            axes.stairs(run["images_per_s"], edges, color=ACCENT, fill=True, alpha=0.16, linewidth=0)
            axes.stairs(run["images_per_s"], edges, color=ACCENT, baseline=None, linewidth=1.6)
            if i:
                axes.axvline(offset, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
            offset = edges[-1]
        unit, name = next((unit, name) for unit, name in _UNITS if offset > 3 * unit or unit == 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}")
        axes.xaxis.set_major_locator(_round_steps(offset, unit))
        axes.set(xlabel=f"{name} from the start of a run", ylim=(0, None), xlim=(0, offset))

    peak = max((max(run["images_per_s"], default=0) for run in runs), default=0)
    return svg("course", draw, f"Images a second over time; at most {peak:.3g}.")


def block_efficiency(along: Mapping[str, Sequence[float | None]], draft_length: int) -> Markup:
    """Steps that a round advances, along the trajectory."""

    def draw(axes: Any) -> None:
        axes.plot(along["at"], _gaps(along["block_efficiency"]), color=ACCENT, marker="o", markersize=3.4)
        axes.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
        axes.annotate("sequential", (0.0, 1), xytext=(2, 4), textcoords="offset points", color=MUTED, fontsize=10)
        axes.set(xlim=(0, 1), ylim=(0, draft_length + 1.3))
        _noise_to_image(axes)

    return svg("efficiency", draw, "Steps a round advances, from noise to image.")


def distance(along: Mapping[str, Sequence[float | None]]) -> Markup:
    """δ of the drafts, along the trajectory."""

    def draw(axes: Any) -> None:
        axes.plot(along["at"], _gaps(along["delta"]), color=SECOND, marker="o", markersize=3.4)
        if any(delta for delta in along["delta"]):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            low, high = axes.get_ylim()
            marks = [m * 10.0**e for e in range(-9, 10) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
            axes.set_yticks(marks[:: -(-len(marks) // 5) or 1])
            axes.yaxis.set_minor_formatter(lambda *_: "")
            axes.tick_params(axis="y", which="minor", length=0)
        axes.set(xlim=(0, 1))
        _noise_to_image(axes)

    return svg("distance", draw, "Mean distance of drafts from the target, from noise to image.")


def acceptance(kept: Sequence[float | None]) -> Markup:
    """Share of drafts that were kept, by their position in the block."""

    def draw(axes: Any) -> None:
        position = range(1, len(kept) + 1)
        axes.bar(position, [each or 0.0 for each in kept], color=ACCENT, width=0.62 if len(kept) < 40 else 1.0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.set(xlabel="position in the block", ylim=(0, 1), xlim=(0.4, len(kept) + 0.6))
        axes.xaxis.get_major_locator().set_params(integer=True)

    return svg("acceptance", draw, "Share of drafts kept at each position of the block.")


def svg(name: str, draw: Callable[[Any], None], told: str) -> Markup:
    """A chart as an element of a page.

    Args:
        name: different for each chart of a page.
        draw: is given the axes.
        told: what a reader who cannot see it is told.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        pyplot.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    for colour, variable in _COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    view = re.search(r'viewBox="[^"]+"', text)
    head = f'<svg class="chart" role="img" aria-label="{escape(told)}" {view[0] if view else ""}>'
    return Markup(re.sub(r"<svg[^>]*>", lambda _: head, text, count=1))


def _round_steps(length: float, unit: float) -> Any:
    from matplotlib.ticker import MultipleLocator

    steps = (m * 10**e for e in range(-1, 9) for m in (1, 2, 5))
    return MultipleLocator(unit * next(step for step in steps if length / (unit * step) <= 7))


def _noise_to_image(axes: Any) -> None:
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["noise", "", "half way", "", "image"])
    labels = axes.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[-1].set_horizontalalignment("right")


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
