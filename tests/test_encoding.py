"""Images as bytes, and the Parquet file of a shard."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from pipeline.encoding import encode, pixel_sha256
from pipeline.shard import GROUP_BYTES, StoredImage, output_schema, write_shard

PIXELS = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4])).flatmap(
    lambda shape: arrays.arrays(np.uint8, shape)
)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(pixels=PIXELS)
def test_webp_loses_nothing(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    image = Image.open(io.BytesIO(encode(pixels, "webp")))
    if pixels.shape[2] == 1:
        image = image.convert("L")  # WebP has no grey
    elif pixels.shape[2] == 4:
        image = image.convert("RGBA")  # and leaves out an alpha channel that hides nothing
    np.testing.assert_array_equal(np.asarray(image).reshape(pixels.shape), pixels)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_loses_little(channels: int) -> None:
    ramp = np.linspace(0, 255, 32)
    pixels = np.repeat(np.add.outer(ramp, ramp)[..., None] / 2, channels, axis=2).round().astype(np.uint8)
    data = encode(pixels, "jpeg")
    image = Image.open(io.BytesIO(data))
    decoded = np.asarray(image).reshape(pixels.shape).astype(int)
    assert image.format == "JPEG"
    assert np.abs(decoded - pixels).max() <= 4
    assert encode(pixels, "jpeg") == data
    with pytest.raises(ValueError, match="transparency"):
        encode(np.zeros((2, 2, 4), np.uint8), "jpeg")


@settings(derandomize=True, max_examples=50, deadline=None)
@given(pixels=PIXELS)
def test_png_loses_nothing(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    decoded = np.asarray(Image.open(io.BytesIO(encode(pixels, "png"))))
    np.testing.assert_array_equal(decoded.reshape(pixels.shape), pixels)
    assert encode(pixels, "png") == encode(pixels.copy(order="F"), "png")
    assert pixel_sha256(pixels.copy(order="F")) == hashlib.sha256(pixels.tobytes()).hexdigest()


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 2)])
def test_pixels_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not uint8 pixels"):
        encode(np.zeros(shape, np.uint8), "png")


def shard(folder: Path, images: list[StoredImage], **columns: Any) -> str:
    path = str(folder / "part.parquet")
    numbers = range(len(images))
    rows = pa.table({"key": [f"{i:012}" for i in numbers], "seed": pa.array(numbers, pa.int64()), **columns})
    write_shard(path, rows, images)
    return path


def stored(data: bytes) -> StoredImage:
    return StoredImage(data, 2, 3, 10, 11, 12, "0" * 64)


def test_case_17_row_groups_hold_at_most_100_images(tmp_path: Path) -> None:
    metadata = pq.read_metadata(shard(tmp_path, [stored(b"x")] * 250))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, 50]


def test_case_17_row_groups_hold_at_most_64_mib(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(9 << 20)
    large = np.random.default_rng(1).bytes(GROUP_BYTES + 1)
    images = [stored(data)] * 4 + [stored(large)] + [stored(data)] * 4
    path = shard(tmp_path, images, prompt=["a" * (4 << 20)] * 9)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [4, 1, 4]
    assert all(group.total_byte_size <= GROUP_BYTES for group in groups if group.num_rows > 1)


def test_case_19_datasets_and_pandas_read_it(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
    image = StoredImage(encode(pixels, "png"), 6, 4, 10, 11, 12, pixel_sha256(pixels))
    path = shard(tmp_path, [image], label=pa.array([3]), note=["a/b"])
    read = datasets.load_dataset("parquet", data_files=path, cache_dir=str(tmp_path / "cache"), split="train")
    assert isinstance(read.features["image"], datasets.Image)
    np.testing.assert_array_equal(np.asarray(read[0]["image"]), pixels[:, :, 0])
    assert read.column_names == pq.read_schema(path).names
    row = pd.read_parquet(path).iloc[0]
    assert (row["key"], row["seed"], row["label"], row["note"]) == ("000000000000", 0, 3, "a/b")
    assert (row["width"], row["height"], row["rounds"], row["calls"], row["evaluations"]) == (6, 4, 10, 11, 12)
    assert row["sha256"] == pixel_sha256(pixels)
    assert row["image"]["path"] is None


def test_a_shard_without_images_is_an_empty_table(tmp_path: Path) -> None:
    table = pq.read_table(shard(tmp_path, []))
    assert len(table) == 0
    assert table.schema.equals(output_schema(table.schema.empty_table().select(["key", "seed"]).schema))


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    first = Path(shard(tmp_path, [stored(b"x")] * 3)).read_bytes()
    assert first == Path(shard(tmp_path, [stored(b"x")] * 3)).read_bytes()
