"""Where images to compare with come from: a folder of image files, Parquet, a data set of ours, the built-in data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.commits import stream_committed
from pipeline.damage import reading
from pipeline.encoding import encode
from pipeline.errors import PipelineError, UsageError
from pipeline.pictures import Picture
from pipeline.storage import Storage
from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER, load_split

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
IMAGE_COLUMNS = ("image", "img")
ROWS = 64  # read together


class PictureSource(Protocol):
    """Images with a name, that can be gone through more than once."""

    name: str

    def __iter__(self) -> Iterator[Picture]:
        """Raises PipelineError where one cannot be read, Unavailable."""
        ...

    def digest(self) -> str:
        """Of everything that the images depend on, hexadecimal."""
        ...


def open_source(name: str) -> PictureSource:
    """The images that a user's words name: a folder of images or of Parquet, a Parquet file, or a data set of ours.

    Raises:
        UsageError: there is nothing of the kind.
        Unavailable: the storage is out of reach.
    """
    if name == FashionMnistTest.name:
        return FashionMnistTest()
    if name.endswith(".parquet"):
        folder, file = os.path.split(name)
        storage = Storage(folder or ".")
        if not storage.exists(file):
            raise UsageError(f"{name}: there is no such file.")
        return ParquetFiles(name, storage, [file])
    storage = Storage(name)
    if storage.list("commits/"):
        return ParquetFiles(name, storage, [record.file for record in stream_committed(storage) if record.written])
    paths = storage.list()
    if images := [path for path in paths if PurePosixPath(path).suffix.lower() in SUFFIXES]:
        return ImageFiles(name, storage, images)
    if tables := [path for path in paths if path.endswith(".parquet")]:
        return ParquetFiles(name, storage, tables)
    raise UsageError(f"{name}: there is no folder with images ({', '.join(SUFFIXES)}) or Parquet files.")


class _Files:
    """Files of one folder, in order."""

    def __init__(self, name: str, storage: Storage, paths: list[str]) -> None:
        self.name = name
        self._storage = storage
        self._paths = paths

    def digest(self) -> str:
        digest = hashlib.sha256()
        for path in self._paths:
            digest.update(f"{path}\0{self._storage.sha256(path)}\n".encode())
        return digest.hexdigest()


class ImageFiles(_Files):
    """PNG, JPEG and WebP files; sub-folders are looked into, and mean nothing."""

    def __iter__(self) -> Iterator[Picture]:
        for path in self._paths:
            yield Picture(path, None, self._storage.read(path), f"{self._storage.uri}/{path}")


class ParquetFiles(_Files):
    """Tables with a column of image files, as the `datasets` library writes them and we do."""

    def __iter__(self) -> Iterator[Picture]:
        for path in self._paths:
            with self._storage.open(path) as handle, reading(self._storage, path):
                yield from parquet_pictures(pq.ParquetFile(handle), path)


class FashionMnistTest:
    """The 10,000 test images of Fashion-MNIST, from Debian's package."""

    name = "fashion-mnist"

    def __iter__(self) -> Iterator[Picture]:
        images, labels = self._load()
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield Picture(f"{i:012}", int(label), encode(image[:, :, None], "png"), f"{self.name}: image {i}")

    def digest(self) -> str:
        images, labels = self._load()
        return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()

    def _load(self) -> tuple[Any, Any]:
        try:
            return load_split("t10k", DEFAULT_FOLDER)
        except FileNotFoundError as error:
            raise UsageError(str(error)) from error


def parquet_pictures(file: Any, name: str) -> Iterator[Picture]:
    """The images of one Parquet file (pq.ParquetFile) in order, a few rows at a time.

    Images are structs with `bytes`, or bytes; the row's `key` and `label` are used where there are such columns.

    Raises:
        PipelineError: there is no column of images, or a row without one.
    """
    schema = file.schema_arrow
    column = next((each for each in IMAGE_COLUMNS if each in schema.names), None)
    if column is None:
        raise PipelineError(f"{name}: no column of images ({' or '.join(IMAGE_COLUMNS)}) among {schema.names}.")
    labelled = "label" in schema.names and pa.types.is_integer(schema.field("label").type)
    columns = [column, *(["key"] if "key" in schema.names else []), *(["label"] if labelled else [])]
    row = 0
    for rows in file.iter_batches(batch_size=ROWS, columns=columns):
        for values in rows.to_pylist():
            key = str(values.get("key", f"{name}:{row}"))
            where = f"{name}: {key if 'key' in values else f'row {row}'}"
            data = values[column].get("bytes") if isinstance(values[column], dict) else values[column]
            if not isinstance(data, bytes):
                raise PipelineError(f"{where}: no bytes of an image in column `{column}`.")
            yield Picture(key, values.get("label"), data, where)
            row += 1
