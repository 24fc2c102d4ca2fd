"""The report and its contact sheet, from committed sets."""

from __future__ import annotations

import io
import json
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from committed_set import job, write_set
from PIL import Image

from pipeline.commits import committed
from pipeline.contact_sheet import COLUMNS, contact_sheet, sized
from pipeline.errors import PipelineError
from pipeline.report import finite, write_report
from pipeline.shown import MAX_CLASSES, MAX_FILES, choose, spread
from pipeline.storage import Storage
from specdiff.stats import Stats

NAMES = {0: "round", 1: "square", 2: "long"}
RUN = {
    "metrics": {"fid": {"value": 1.5, "count": 6, "extractor": "fashion-mnist"}},
    "throughput": {"images": 6, "images_per_s": 2.0, "seconds": 3.0, "workers": 2},
    "sampler": Stats(samples=6, steps=600, rounds=130, calls=150, evaluations=900).to_dict(),
    "failures": {},
}


def shades(count: int) -> np.ndarray:
    """Plain images, each of a shade of its own: uint8 [count, 28, 28, 1]."""
    return np.broadcast_to((np.arange(count) % 256).astype(np.uint8)[:, None, None, None], (count, 28, 28, 1))


def strict(data: bytes) -> dict[str, Any]:
    """Parse JSON, refusing NaN and infinities, which other parsers do not take."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    parsed: dict[str, Any] = json.loads(data, parse_constant=refuse)
    return parsed


def cells(sheet: bytes | None, columns: int, lines: int) -> np.ndarray:
    """Shade at the middle of each cell, int64 [lines, columns]; −1 where the sheet is white."""
    assert sheet is not None
    image = Image.open(io.BytesIO(sheet)).convert("RGB")
    pixels = np.asarray(image).astype(int)
    size, gap, margin = 84, 4, 28
    x = image.width - margin - columns * (size + gap) + gap + size // 2 + np.arange(columns) * (size + gap)
    y = image.height - margin - lines * (size + gap) + gap + size // 2 + np.arange(lines) * (size + gap)
    middle = pixels[y[:, None], x[None]]
    return np.where((middle == 255).all(axis=2), -1, middle[:, :, 0])


def sheet_of(storage: Storage, names: dict[int, str]) -> bytes | None:
    return contact_sheet(choose(storage, committed(storage), names), "title", "", names)


def test_report_says_what_came_of_the_job(tmp_path):
    storage = write_set(tmp_path, shades(6), [0, 1] * 3)
    written = write_report(storage, job(), RUN)
    report = strict(storage.read("report/report.json"))
    assert report == written
    assert report["name"] == "trousers & co"
    assert report["images"] == 6
    assert report["metrics"]["fid"] == RUN["metrics"]["fid"]
    assert report["throughput"]["images_per_s"] == 2.0
    assert report["sampler"]["sequential_speedup"] == 4.0
    assert report["sampler"]["calls_per_image"] == 25.0
    assert report["sampler"]["evaluations_per_image"] == 150.0
    assert report["settings"]["sampler"]["draft_length"] == 7
    assert report["software"]["torch"]
    assert Image.open(io.BytesIO(storage.read(report["contact_sheet"]))).format == "PNG"


def test_evaluating_again_keeps_the_throughput(tmp_path):
    storage = write_set(tmp_path, shades(6))
    write_report(storage, job(), RUN)
    again = write_report(storage, job(), {"metrics": {"fid": {"value": 2.5}}})
    assert again["metrics"] == {"fid": {"value": 2.5}}
    assert again["throughput"] == RUN["throughput"]
    assert again["sampler"]["calls_per_image"] == 25.0


def test_a_report_that_cannot_be_read_is_replaced(tmp_path):
    storage = write_set(tmp_path, shades(2))
    storage.replace("report/report.json", b'{"metrics": {')
    assert write_report(storage, job(), {})["metrics"] == {}


def test_a_set_without_images_has_a_report_without_a_sheet(tmp_path):
    storage = Storage(str(tmp_path))
    report = write_report(storage, job(), {"sampler": Stats().to_dict()})
    assert report["contact_sheet"] is None
    assert report["sampler"]["calls_per_image"] is None
    assert strict(storage.read("report/report.json"))["images"] == 0


def test_no_number_that_json_lacks(tmp_path):
    assert finite({"a": [float("nan"), 1.5, (float("inf"), "x", None, True)]}) == {
        "a": [None, 1.5, [None, "x", None, True]]
    }
    storage = write_set(tmp_path, shades(2))
    write_report(storage, job(), {"metrics": {"fid": {"value": float("nan")}}})
    assert strict(storage.read("report/report.json"))["metrics"]["fid"]["value"] is None


def test_a_line_is_a_class(tmp_path):
    labels = [1, 0, 2, 1, 0, 1]
    sheet = cells(sheet_of(write_set(tmp_path, shades(6), labels, files=2), NAMES), columns=3, lines=3)
    assert sheet.tolist() == [[1, 4, -1], [0, 3, 5], [2, -1, -1]]


def test_rows_without_a_class_come_last(tmp_path):
    sheet = cells(sheet_of(write_set(tmp_path, shades(4), [None, 2, None, 0]), NAMES), columns=2, lines=3)
    assert sheet.tolist() == [[3, -1], [1, -1], [0, 2]]


def test_without_classes_images_follow_by_key(tmp_path):
    sheet = cells(sheet_of(write_set(tmp_path, shades(30), files=3), {}), columns=COLUMNS, lines=3)
    assert sheet.ravel().tolist() == [*range(30), *[-1] * 6]


def test_a_sorted_set_shows_every_class(tmp_path):
    labels = sorted(i % 3 for i in range(120))
    sheet = cells(sheet_of(write_set(tmp_path, shades(120), labels, files=12), NAMES), columns=COLUMNS, lines=3)
    assert [sorted({labels[shade] for shade in line}) for line in sheet] == [[0], [1], [2]]


class CountedStorage(Storage):
    """Remembers which files were opened."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.opened: list[str] = []

    def open(self, path: str) -> BinaryIO:
        self.opened.append(path)
        return super().open(path)


@pytest.mark.parametrize(("names", "most"), [(NAMES, 20), ({}, MAX_FILES)])
def test_the_cost_does_not_grow_with_the_set(tmp_path, names, most):
    count = 200
    storage = CountedStorage(write_set(tmp_path, shades(count), [i % 3 for i in range(count)], files=100).uri)
    assert sheet_of(storage, names)
    assert len(storage.opened) <= most


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    storage = write_set(tmp_path, shades(2))
    table = pq.read_table(storage.open("data/part-00000.parquet"))
    broken = pa.array([{"bytes": b"?", "path": None}] * 2, table.schema.field("image").type)
    table = table.set_column(table.schema.get_field_index("image"), "image", broken)
    pq.write_table(table, tmp_path / "set" / "data" / "part-00000.parquet")
    with pytest.raises(PipelineError, match=r"data/part-00000\.parquet: 000000000000: the picture cannot be read"):
        write_report(storage, job(), {})


def test_many_classes_are_cut_short(tmp_path):
    sheet = cells(sheet_of(write_set(tmp_path, shades(60), list(range(30)) * 2), {}), columns=2, lines=MAX_CLASSES)
    assert sheet.tolist() == [[i, i + 30] for i in range(MAX_CLASSES)]


@pytest.mark.parametrize(("size", "shown"), [((28, 28), (84, 84)), ((32, 16), (64, 32)), ((512, 256), (160, 80))])
def test_cells_are_enlarged_by_whole_factors_or_reduced(size, shown):
    assert sized(Image.new("RGB", size)).size == shown


def test_spread_is_a_permutation_that_begins_far_apart():
    files = [f"{i:03}" for i in range(100)]
    assert sorted(spread(files)) == files
    assert spread(files)[:4] == ["000", "064", "032", "096"]
    assert spread([]) == []
