"""The contact sheet: one picture of a few images of every class, from a data set of any size."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFont

from pipeline.commits import CommitRecord
from pipeline.damage import reading
from pipeline.decoding import decode
from pipeline.storage import Storage

COLUMNS = 12
MAX_LINES = 20
UNLABELLED_LINES = 8
MAX_FILES = 64
ENLARGE_TO = 84  # pixels that a small image is enlarged to, by a whole factor
REDUCE_TO = 160  # pixels that a larger image is reduced to
GAP = 4
MARGIN = 28
TITLE_SIZE, TEXT_SIZE = 24, 15
BACKGROUND, INK, FAINT = "white", "#1c1e21", "#6b7075"


@dataclass(frozen=True)
class Cell:
    """One image of the sheet, at the size it is shown in."""

    label: int | None
    key: str
    picture: Image.Image

    @property
    def order(self) -> tuple[bool, int, str]:
        """Smallest label first, images without one last, each label's by key."""
        return self.label is None, self.label or 0, self.key


def contact_sheet(
    storage: Storage, records: Sequence[CommitRecord], title: str, subtitle: str, class_names: Mapping[int, str]
) -> bytes | None:
    """Draw the contact sheet of a data set: a PNG file, or None where the set has no images yet.

    With a ``label`` column a line is a class; without one the images follow each other by key. At most MAX_FILES data
    files are opened, and of their images only those read that are shown, so that the cost does not grow with the set.

    Args:
        storage: the data set's folder.
        records: its commit records.
        title: the heading.
        subtitle: a line below it.
        class_names: names of the target's classes, as far as it has any.

    Raises:
        PipelineError: an image cannot be read.
        Unavailable: the storage is out of reach.
    """
    counts: Counter[int | None] = Counter()
    cells: list[Cell] = []
    for file in spread(sorted(record.file for record in records if record.written))[:MAX_FILES]:
        if class_names and all(counts[label] >= COLUMNS for label in list(class_names)[:MAX_LINES]):
            break
        cells.extend(cells_of_file(storage, file, counts))
    if not cells:
        return None
    return png(draw(lines(cells), title, subtitle, class_names))


def spread(files: Sequence[str]) -> list[str]:
    """The same files in the order of their numbers with the bits reversed: every beginning is spread over the whole.

    So a set that is sorted by class shows all of them.
    """
    bits = len(files).bit_length()
    return [files[number] for number in sorted(range(len(files)), key=lambda number: f"{number:0{bits}b}"[::-1])]


def cells_of_file(storage: Storage, path: str, counts: Counter[int | None]) -> Iterator[Cell]:
    """The images of a data file that the sheet still has room for, counted under their labels.

    A row group's images are read only where one of them is shown.
    """
    with storage.open(path) as handle, reading(storage, path):
        parquet = pq.ParquetFile(handle)
        columns = [name for name in ("key", "label") if name in parquet.schema_arrow.names]
        room = COLUMNS if "label" in columns else COLUMNS * UNLABELLED_LINES
        for group in range(parquet.num_row_groups):
            shown = []
            for index, row in enumerate(parquet.read_row_group(group, columns).to_pylist()):
                label = row.get("label")
                if counts[label] < room and (counts[label] or len(+counts) < MAX_LINES):
                    counts[label] += 1
                    shown.append((index, label, row["key"]))
            if shown:
                images = parquet.read_row_group(group, ["image"])["image"].take([index for index, _, _ in shown])
                for (_, label, key), image in zip(shown, images.to_pylist(), strict=True):
                    yield Cell(label, key, sized(decode(image["bytes"], f"{path}: {key}").convert("RGB")))


def sized(image: Image.Image) -> Image.Image:
    """Small images enlarged by a whole factor, pixel by pixel; large ones reduced."""
    side = max(image.size)
    if side > REDUCE_TO:
        image.thumbnail((REDUCE_TO, REDUCE_TO), Image.Resampling.LANCZOS)
        return image
    factor = max(1, ENLARGE_TO // side)
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def lines(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells in reading order: a line for a label, or as many as it takes where the set has none."""
    grouped = [list(group) for _, group in groupby(sorted(cells, key=lambda c: c.order), key=lambda c: c.label)]
    return [group[first : first + COLUMNS] for group in grouped for first in range(0, len(group), COLUMNS)]


def draw(rows: Sequence[Sequence[Cell]], title: str, subtitle: str, class_names: Mapping[int, str]) -> Image.Image:
    """Lay out lines of cells below a heading, with the name of its label before each line."""
    title_font, font = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(TEXT_SIZE)
    labelled = any(cell.label is not None for row in rows for cell in row)
    names = [name_of(row[0].label, class_names) if labelled else "" for row in rows]
    width = max(cell.picture.width for row in rows for cell in row)
    height = max(cell.picture.height for row in rows for cell in row)
    columns = max(len(row) for row in rows)

    left = MARGIN + (max(round(font.getlength(name)) for name in names) + 4 * GAP if labelled else 0)
    top = MARGIN + round(TITLE_SIZE * 1.4 + TEXT_SIZE * 1.4) + 3 * GAP
    text_width = max(title_font.getlength(title), font.getlength(subtitle))
    right = max(left + columns * (width + GAP) - GAP, round(MARGIN + text_width)) + MARGIN
    sheet = Image.new("RGB", (right, top + len(rows) * (height + GAP) - GAP + MARGIN), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, title_font)
    pen.text((MARGIN, MARGIN + round(TITLE_SIZE * 1.4)), subtitle, FAINT, font)
    for line, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = top + line * (height + GAP)
        pen.text((left - 3 * GAP, y + height / 2), name, INK, font, anchor="rm")
        for column, cell in enumerate(row):
            x = left + column * (width + GAP)
            sheet.paste(cell.picture, (x + (width - cell.picture.width) // 2, y + (height - cell.picture.height) // 2))
    return sheet


def name_of(label: int | None, class_names: Mapping[int, str]) -> str:
    return "no class" if label is None else class_names.get(label, f"class {label}")


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
