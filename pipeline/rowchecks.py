"""What a manifest's columns and rows must be for a target, and rows in their normal form."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.jobfile import cut, shown
from pipeline.raw_rows import INPUT_COLUMNS, RawBatch
from pipeline.spec import MAX_SEED

if TYPE_CHECKING:
    from specdiff.targets.base import TargetInfo

ERROR = "__error__"
OUTPUT_COLUMNS = ("image", "width", "height", "rounds", "calls", "evaluations", "sha256", ERROR)


def check_columns(names: list[str], info: TargetInfo) -> list[str]:
    """What is wrong with the names of a manifest's columns, whatever its rows hold."""
    problems = []
    for name in names:
        plain = name.strip().lower()
        if plain in INPUT_COLUMNS and name not in INPUT_COLUMNS:
            problems.append(f"column `{name}`: did you mean `{plain}`?")
        elif plain in OUTPUT_COLUMNS:
            problems.append(f"column `{name}`: the output has a column of this name; rename yours")
    problems += _missing_columns(names, info, suggested=bool(problems))
    if "label" in names and info.num_classes is None:
        problems.append(f"column `label`: {info.name} has no classes; take it out, or rename it to carry it along")
    if "guidance_scale" in names and not info.takes_guidance:
        problems.append(
            f"column `guidance_scale`: {info.name} has no null class to steer away from; take it out, or rename it to "
            "carry it along"
        )
    for name in ("prompt", "negative_prompt"):
        if name in names and not info.takes_prompts:
            problems.append(
                f"column `{name}`: {info.name} takes no prompts; take it out, or rename it to carry it along"
            )
    return problems


def _missing_columns(names: list[str], info: TargetInfo, suggested: bool) -> Iterable[str]:
    """Problems with columns that the target needs; `suggested`: those with nearly their names are reported already."""
    needed = {"seed": True, "label": info.num_classes is not None, "prompt": info.takes_prompts}
    for name, is_needed in needed.items():
        if not is_needed or name in names or (suggested and name in (each.strip().lower() for each in names)):
            continue
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean `{name}` by `{near[0]}`?" if near else f"the columns are: {', '.join(names) or 'none'}"
        reason = "" if name == "seed" else f", which {info.name} needs"
        yield f"no column `{name}`{reason}; {hint}"


def normal_schema(schema: Any) -> Any:
    """Columns of the normal form (pa.Schema): those the project reads, in its types, the carried ones, `__error__`."""
    read = [(name, kind) for name, kind in INPUT_COLUMNS.items() if name in schema.names or name == "key"]
    carried = [(each.name, each.type) for each in schema if each.name not in INPUT_COLUMNS]
    return pa.schema([*read, *carried, (ERROR, pa.string())])


@dataclass
class CheckedBatch:
    """Rows in normal form.

    Attributes:
        batch: columns of `normal_schema` (pa.RecordBatch); `__error__` is null, or all that is wrong with a row.
        problems: (offset, what is wrong), in order of offset.
        keys: the rows' own keys, null where there is none; None when the manifest has no `key` column.
    """

    batch: Any
    problems: list[tuple[int, str]]
    keys: Any


def check_rows(batch: RawBatch, schema: Any, info: TargetInfo, first_row: int) -> CheckedBatch:
    """Checks consecutive rows, of which the first is row `first_row` of the manifest.

    `schema` is the `normal_schema` of columns that `check_columns` found nothing wrong with.
    """
    problems = list(batch.broken.items())
    columns = dict(batch.columns)

    def read(name: str, values: Any, wrong: Any, reason: Any) -> None:
        """Takes a checked column; `wrong` (bool array) marks the rows whose raw value `reason` explains."""
        offsets = np.flatnonzero(wrong)
        raw = batch.columns[name]
        problems.extend(
            (int(at), f"{name}: {reason(raw[at].as_py())}") for at in offsets if int(at) not in batch.broken
        )
        columns[name] = values

    seeds, seed_wrong = _whole_numbers(columns["seed"], MAX_SEED)
    read("seed", seeds, seed_wrong | _nulls(seeds), lambda value: _number_reason(value, MAX_SEED))
    if "label" in columns and info.num_classes is not None:
        last = info.num_classes - 1
        labels, wrong = _whole_numbers(columns["label"], last)
        wrong = wrong if info.has_null_class else wrong | _nulls(labels)
        read("label", labels, wrong, lambda value: _label_reason(value, last, info.has_null_class))
    if "guidance_scale" in columns:
        scales, wrong = _numbers(columns["guidance_scale"])
        read("guidance_scale", scales, wrong, lambda value: f"{shown(value)} is not a number of 0 or more")
    if "prompt" in columns:
        prompts = _filled_text(columns["prompt"])
        read("prompt", prompts, _nulls(prompts), lambda value: "is empty")
    if "negative_prompt" in columns:
        columns["negative_prompt"] = _filled_text(columns["negative_prompt"])
    keys = None
    if "key" in columns:
        keys = _filled_text(columns["key"])
        read("key", keys, _nulls(keys), lambda value: "is empty")
    numbers = pa.array([f"{row:012d}" for row in range(first_row, first_row + batch.rows)])
    columns["key"] = numbers if keys is None else pc.coalesce(keys, numbers)
    problems.sort(key=lambda problem: problem[0])
    columns[ERROR] = pa.array(_joined(problems, batch.rows), pa.string())
    normal = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return CheckedBatch(normal, problems, keys)


def _joined(problems: list[tuple[int, str]], rows: int) -> list[str | None]:
    errors: list[str | None] = [None] * rows
    for offset, reason in problems:
        errors[offset] = reason if errors[offset] is None else f"{errors[offset]}; {reason}"
    return errors


def _nulls(values: Any) -> Any:
    return np.asarray(values.is_null())


def _filled_text(values: Any) -> Any:
    """Text with null for what is empty or only white space."""
    empty = pc.equal(pc.utf8_trim_whitespace(values), "")
    return pc.if_else(pc.fill_null(empty, True), pa.scalar(None, pa.string()), values)


def _whole_numbers(text: Any, last: int) -> tuple[Any, Any]:
    """(int64 array, null for all but 0 … last; bool array of what is there but is no such number) of a text array."""
    text = _filled_text(pc.utf8_trim_whitespace(text))
    digits = pc.match_substring_regex(text, "^[0-9]{1,19}$")
    numbers = pc.if_else(digits, text, pa.scalar(None, pa.string())).cast(pa.uint64())
    inside = pc.less_equal(numbers, pa.scalar(last, pa.uint64()))
    good = pc.if_else(inside, numbers, pa.scalar(None, pa.uint64())).cast(pa.int64())
    return good, np.asarray(text.is_valid()) & np.asarray(good.is_null())


def _numbers(text: Any) -> tuple[Any, Any]:
    """(double array, null for all but numbers from 0 on; bool array of what is there but is none) of a text array."""
    text = _filled_text(pc.utf8_trim_whitespace(text))
    plain = pc.match_substring_regex(text, r"^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,2})?$")
    good = pc.if_else(plain, text, pa.scalar(None, pa.string())).cast(pa.float64())
    return good, np.asarray(text.is_valid()) & np.asarray(good.is_null())


def _number_reason(value: str | None, last: int) -> str:
    """Why a value is no whole number from 0 to `last`."""
    text = "" if value is None else value.strip()
    if not text:
        return "is empty"
    if re.fullmatch("-[0-9]+", text):
        return f"{cut(text)} is negative; they go from 0 to {last}"
    if re.fullmatch("[0-9]+", text):
        return f"{cut(text)} is too large; they go from 0 to {last}"
    return f"{shown(value)} is not a whole number"


def _label_reason(value: str | None, last: int, has_null_class: bool) -> str:
    reason = _number_reason(value, last)
    if reason == "is empty" and not has_null_class:
        return "is empty, and the target has no null class"
    return reason.replace("is too large; they go", "is not a class; they go")
