"""What a bench found, as a table and as two pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORMATS = ("png", "svg")
_SHADES = {"free": "Blues", "frozen": "Oranges"}


def table(report: Mapping[str, Any]) -> str:
    """Two aligned tables: what each sampler costs, and what becomes of its drafts."""
    rows = report["rows"]
    measure = next((f"{row['quality']['name']} ({row['quality']['count']})" for row in rows if row["quality"]), None)
    costs = [
        ["sampler", "images/s", "×", "latency, s", "×", "calls", "evaluations", "speed-up", "overhead", "memory"]
        + ([measure] if measure else [])
    ]
    for row in rows:
        memory = row["peak_memory_bytes"]
        costs.append(
            [
                row["name"],
                _with_quartiles(row["images_per_s"]),
                f"{row['throughput_ratio']:.2f}",
                _with_quartiles(row["latency_s"]),
                f"{row['latency_ratio']:.2f}",
                f"{row['calls_per_image']:.1f}",
                f"{row['evaluations_per_image']:.1f}",
                f"{row['sequential_speedup']:.2f}",
                f"{100 * row['overhead']['median']:.1f} %",
                "" if memory is None else f"{memory / 2**20:.0f} MiB",
            ]
            + ([f"{row['quality']['value']:.2f} ± {row['quality']['error']:.2f}"] if measure else [])
        )
    drafts = [["sampler", "steps a round", "δ from start to end", "share kept at each position"]]
    for row in rows:
        if not row["sequential"]:
            drafts.append(
                [
                    row["name"],
                    f"{row['block_efficiency']:.2f}",
                    " ".join("–" if each is None else f"{each:.2g}" for each in row["along"]["delta"][:: _every(row)]),
                    " ".join(f"{each:.2f}" for each in row["accepted_by_position"]),
                ]
            )
    return "\n".join([*aligned(costs, numbers=True), "", *aligned(drafts, numbers=False)])


def draw(report: Mapping[str, Any], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the pictures: what rounds do along the trajectory, and, where quality was judged, quality against cost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures = {"trajectory": _along}
    if all(row["quality"] for row in report["rows"]):
        pictures["quality"] = _quality
    written = []
    for name, picture in pictures.items():
        figure = picture(report["rows"])
        for ending in formats:
            written.append(folder / f"{name}.{ending}")
            figure.savefig(written[-1], dpi=160)
        pyplot.close(figure)
    return written


def _along(rows: Sequence[Mapping[str, Any]]) -> Any:
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8.5, 7.5), sharex=True, layout="constrained")
    styles = _styles(rows)
    for row in rows:
        if row["sequential"]:
            steps = rows[0]["steps"] / row["steps"]
            above.axhline(steps, color=styles[row["name"]]["color"], linestyle="--", linewidth=1)
            above.annotate(
                row["name"], (1.01, steps), xycoords=("axes fraction", "data"), va="center", fontsize=8, color="0.35"
            )
            continue
        label = row["name"] + (" (two calls a round)" if row["settings"]["drafter"] == "frozen" else "")
        line = {"color": styles[row["name"]]["color"], "label": label, "marker": ".", "linewidth": 1.4}
        above.plot(row["along"]["at"], _gaps(row["along"]["block_efficiency"]), **line)
        below.plot(row["along"]["at"], _gaps(row["along"]["delta"]), **line)
    above.set(ylabel="steps a round (a call, where sequential)", ylim=(0, None))
    above.set_title("Block efficiency along the trajectory", loc="left", fontsize=11)
    below.set(
        xlabel="where the step is: 0 pure noise … 1 image", ylabel="δ, mean over drafts", yscale="log", xlim=(0, 1)
    )
    below.set_title("How far drafts are from the target, in standard deviations of the step", loc="left", fontsize=11)
    below.legend(fontsize=8, frameon=False, ncols=2)
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _quality(rows: Sequence[Mapping[str, Any]]) -> Any:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
    styles = _styles(rows)
    costs = [
        ("sequential calls an image", lambda row: row["calls_per_image"]),
        ("seconds an image, at full lanes", lambda row: 1 / row["images_per_s"]["median"]),
    ]
    judged = rows[0]["quality"]
    for axes, (label, cost) in zip(panels, costs, strict=True):
        fewer = [row for row in rows if row["sequential"]]
        axes.plot([cost(row) for row in fewer], [row["quality"]["value"] for row in fewer], color="0.6", linewidth=1)
        for row in fewer:
            axes.annotate(
                f"{row['steps']} steps", (cost(row), row["quality"]["value"]), xytext=(8, 6),
                textcoords="offset points", fontsize=8, color="0.35",
            )  # fmt: skip
        for row in rows:
            axes.errorbar(
                cost(row), row["quality"]["value"], row["quality"]["error"], label=row["name"], linestyle="none",
                markersize=8, markeredgecolor="black", markeredgewidth=0.5, elinewidth=1, capsize=2, zorder=3,
                **styles[row["name"]],
            )  # fmt: skip
        axes.set(xlabel=label, xscale="log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "2345" else "")
        axes.tick_params(axis="x", which="minor", labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel=f"{judged['name']} of {judged['count']} images, ± standard error (less is better)")
    panels[0].set_title("Quality against cost", loc="left", fontsize=11)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def _styles(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each row: grey for sequential ones, darker with γ within a drafter's own colour."""
    from matplotlib import colormaps

    blocks: dict[str, list[str]] = {}
    styles: dict[str, dict[str, Any]] = {}
    for row in rows:
        settings = row["settings"]
        if row["sequential"]:
            styles[row["name"]] = {"color": "0.45", "marker": "s"}
        elif settings["drafter"] == "picard":
            styles[row["name"]] = {"color": "tab:pink", "marker": "P"}
        elif settings["verification"] == "block":
            blocks.setdefault(settings["drafter"], []).append(row["name"])
        else:
            colour = "tab:purple" if settings["verification"] == "token" else "tab:green"
            styles[row["name"]] = {"color": colour, "marker": "D"}
    for drafter, names in blocks.items():
        for i, name in enumerate(names):
            shade = colormaps[_SHADES[drafter]](0.45 + 0.5 * (i + 1) / len(names))
            styles[name] = {"color": shade, "marker": "o" if drafter == "free" else "^"}
    return styles


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _every(row: Mapping[str, Any]) -> int:
    return max(len(row["along"]["delta"]) // 5, 1)


def _with_quartiles(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.3g} ({spread['low']:.3g}–{spread['high']:.3g})"


def aligned(cells: Sequence[Sequence[str]], numbers: bool) -> list[str]:
    """Lines of a table, its first column to the left and the others to the right where they are numbers."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        aligned = [
            cell.rjust(width) if numbers and i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines
