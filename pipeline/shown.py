"""Which images of a set are shown: a few of every class, or of every prompt, from a data set of any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq
from PIL import Image

from pipeline.commits import CommitRecord
from pipeline.damage import reading
from pipeline.decoding import decode
from pipeline.storage import Storage

PER_CLASS = 12
MAX_CLASSES = 20
UNLABELLED = 96  # images of a set without classes
MAX_FILES = 64
LARGEST = 320  # pixels that a larger image is reduced to
SHOWN_COLUMNS = ("key", "seed", "label", "prompt")


@dataclass(frozen=True)
class Shown:
    """One image that is shown, and whose it is."""

    key: str
    seed: int
    label: int | None
    prompt: str | None
    image: Image.Image

    @property
    def order(self) -> tuple[bool, int, str]:
        """Smallest label first, images without one last, each label's by key."""
        return self.label is None, self.label or 0, self.key


def choose(storage: Storage, records: Sequence[CommitRecord], class_names: Mapping[int, str]) -> list[Shown]:
    """Images in the order in which they are shown.

    With a ``label`` column PER_CLASS of each of MAX_CLASSES, else UNLABELLED of them. At most MAX_FILES data files are
    opened, and of their images only those read that are shown, so that the cost does not grow with the set.

    Args:
        storage: the data set's folder.
        records: its commit records.
        class_names: names of the target's classes, as far as it has any.

    Raises:
        PipelineError: an image cannot be read.
        Unavailable: the storage is out of reach.
    """
    counts: Counter[int | None] = Counter()
    chosen: list[Shown] = []
    for file in spread(sorted(record.file for record in records if record.written))[:MAX_FILES]:
        if class_names and all(counts[label] >= PER_CLASS for label in list(class_names)[:MAX_CLASSES]):
            break
        chosen.extend(_of_file(storage, file, counts))
    return sorted(chosen, key=lambda each: each.order)


def spread(files: Sequence[str]) -> list[str]:
    """The same files in the order of their numbers with the bits reversed: every beginning is spread over the whole.

    So a set that is sorted by class shows all of them.
    """
    bits = len(files).bit_length()
    return [files[number] for number in sorted(range(len(files)), key=lambda number: f"{number:0{bits}b}"[::-1])]


def _of_file(storage: Storage, path: str, counts: Counter[int | None]) -> Iterator[Shown]:
    """The images of a data file that there is still room for, counted under their labels.

    A row group's images are read only where one of them is shown.
    """
    with storage.open(path) as handle, reading(storage, path):
        parquet = pq.ParquetFile(handle)
        columns = [name for name in SHOWN_COLUMNS if name in parquet.schema_arrow.names]
        room = PER_CLASS if "label" in columns else UNLABELLED
        for group in range(parquet.num_row_groups):
            wanted = []
            for index, row in enumerate(parquet.read_row_group(group, columns).to_pylist()):
                label = row.get("label")
                if counts[label] < room and (counts[label] or len(+counts) < MAX_CLASSES):
                    counts[label] += 1
                    wanted.append((index, row))
            if wanted:
                images = parquet.read_row_group(group, ["image"])["image"].take([index for index, _ in wanted])
                for (_, row), image in zip(wanted, images.to_pylist(), strict=True):
                    picture = decode(image["bytes"], f"{path}: {row['key']}").convert("RGB")
                    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
                    yield Shown(row["key"], row["seed"], row.get("label"), row.get("prompt"), picture)


def name_of(label: int | None, class_names: Mapping[int, str]) -> str:
    return "no class" if label is None else class_names.get(label, f"class {label}")
