"""The contact sheet: the images that are shown of a set, as one picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import groupby

from PIL import Image, ImageDraw, ImageFont

from pipeline.shown import PER_CLASS, Shown, name_of

COLUMNS = PER_CLASS
ENLARGE_TO = 84  # pixels that a small image is enlarged to, by a whole factor
REDUCE_TO = 160  # pixels that a larger image is reduced to
GAP = 4
MARGIN = 28
TITLE_SIZE, TEXT_SIZE = 24, 15
BACKGROUND, INK, FAINT = "white", "#1c1e21", "#6b7075"


def contact_sheet(chosen: Sequence[Shown], title: str, subtitle: str, class_names: Mapping[int, str]) -> bytes | None:
    """Draw the contact sheet of a data set: a PNG file, or None where there are no images.

    Where images have labels a line is a class; where not they follow each other.

    Args:
        chosen: the images, in order.
        title: the heading.
        subtitle: a line below it.
        class_names: names of the target's classes, as far as it has any.
    """
    return png(draw(lines(chosen), title, subtitle, class_names)) if chosen else None


def sized(image: Image.Image) -> Image.Image:
    """Small images enlarged by a whole factor, pixel by pixel; large ones reduced."""
    side = max(image.size)
    if side > REDUCE_TO:
        reduced = image.copy()
        reduced.thumbnail((REDUCE_TO, REDUCE_TO), Image.Resampling.LANCZOS)
        return reduced
    factor = max(1, ENLARGE_TO // side)
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def lines(chosen: Sequence[Shown]) -> list[list[Shown]]:
    """In reading order: a line for a label, or as many as it takes where the set has none."""
    grouped = [list(group) for _, group in groupby(chosen, key=lambda each: each.label)]
    return [group[first : first + COLUMNS] for group in grouped for first in range(0, len(group), COLUMNS)]


def draw(rows: Sequence[Sequence[Shown]], title: str, subtitle: str, class_names: Mapping[int, str]) -> Image.Image:
    """Lay out lines of images below a heading, with the name of its label before each line."""
    title_font, font = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(TEXT_SIZE)
    labelled = any(each.label is not None for row in rows for each in row)
    names = [name_of(row[0].label, class_names) if labelled else "" for row in rows]
    pictures = [[sized(each.image) for each in row] for row in rows]
    width = max(picture.width for row in pictures for picture in row)
    height = max(picture.height for row in pictures for picture in row)
    columns = max(len(row) for row in rows)

    left = MARGIN + (max(round(font.getlength(name)) for name in names) + 4 * GAP if labelled else 0)
    top = MARGIN + round(TITLE_SIZE * 1.4 + TEXT_SIZE * 1.4) + 3 * GAP
    text_width = max(title_font.getlength(title), font.getlength(subtitle))
    right = max(left + columns * (width + GAP) - GAP, round(MARGIN + text_width)) + MARGIN
    sheet = Image.new("RGB", (right, top + len(rows) * (height + GAP) - GAP + MARGIN), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, title_font)
    pen.text((MARGIN, MARGIN + round(TITLE_SIZE * 1.4)), subtitle, FAINT, font)
    for line, (row, name) in enumerate(zip(pictures, names, strict=True)):
        y = top + line * (height + GAP)
        pen.text((left - 3 * GAP, y + height / 2), name, INK, font, anchor="rm")
        for column, picture in enumerate(row):
            x = left + column * (width + GAP)
            sheet.paste(picture, (x + (width - picture.width) // 2, y + (height - picture.height) // 2))
    return sheet


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
