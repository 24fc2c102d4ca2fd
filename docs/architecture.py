"""Writes the lists of docs/architecture.md from the code: `python docs/architecture.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")

# Package → room → what it is for, and its modules below the package, as patterns.
ROOMS: dict[str, dict[str, tuple[str, str]]] = {
    "pipeline": {
        "command line": ("what people type", "cli bench scaling calibration reference words signals errors"),
        "job": ("what they ask for", "spec jobfile"),
        "rows": (
            "what goes in: read, checked, stored",
            "manifest manifest_store checked_rows sources raw_rows *_rows rowchecks duplicates",
        ),
        "run": ("who does what, when", "run auto driver driver_cost scheduler progress meters cluster"),
        "schedule": ("which runs are due", "schedule scheduled cron dates dated_job dated_sets notify"),
        "submission": ("a job for a cluster elsewhere", "submit package ray_jobs"),
        "worker": ("one device's work: rows to committed files", "worker stopwatch shard encoding publish"),
        "records": (
            "what is done and what is not",
            "commits inventory failures output lease damage work throughput software",
        ),
        "storage": ("bytes in one folder", "storage s3 scratch"),
        "audit": ("looks at a set, without making anything", "verify status clean"),
        "features": (
            "what a network sees in images",
            "extractors extractor_weights clip dinov2 decoding pictures picture_sources extraction features "
            "feature_store",
        ),
        "judgement": (
            "scores, and whether two sets are of one law",
            "evaluation metrics metric_text moments class_scores subset aggregate references reference_stats "
            "two_sample compare evaluation_cost",
        ),
        "report": ("what people look at", "report report_page charts card shown contact_sheet"),
    },
    "specdiff": {
        "sampler": ("lanes and rounds", "sampler requests stats noise"),
        "speculation": ("drafts, and what becomes of them", "drafters gain verification coupling"),
        "steps": ("the chain that is sampled", "transitions schedules"),
        "targets": ("whose pictures they are", "targets targets.*"),
        "evidence": (
            "that it is exact, and how fast",
            "bench bench_report benefit claims pilots clock overhead environment testing",
        ),
    },
}


def modules() -> dict[str, Path]:
    """Every module of the two packages but the packages themselves, by its dotted name."""
    found = {}
    for package in ROOMS:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if name != package:
                found[name] = path
    return found


def room_of(module: str) -> str:
    """The first room with a pattern that a module meets; raises LookupError where there is none."""
    package, _, name = module.partition(".")
    for room, (_, patterns) in ROOMS[package].items():
        if any(fnmatch(name, pattern) for pattern in patterns.split()):
            return room
    raise LookupError(f"{module} has no room: add it to ROOMS in docs/architecture.py")


def imports(path: Path) -> Iterator[str]:
    """Modules that a module imports as it runs, at its top or later; not those that only its types are of."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        pending.extend(ast.iter_child_nodes(node))


def lists() -> str:
    """Each room with its modules, each with the first line of its docstring."""
    lines = []
    known = modules()
    for package, rooms in ROOMS.items():
        for room, (what, _) in rooms.items():
            lines.append(f"\n### {room}: {what}\n")
            for module, path in known.items():
                if module.startswith(f"{package}.") and room_of(module) == room:
                    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                    lines.append(f"- `{module}`: {said.splitlines()[0]}" if said else f"- `{module}`")
    return "\n".join(lines).strip()


def page() -> str:
    """The page as it should be: its lists are made anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- lists -->\n")
    return before + "<!-- lists -->\n" + lists() + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
