"""Bytes of an image file to a picture, or an error that names it."""

from __future__ import annotations

import io

from PIL import Image

from pipeline.errors import PipelineError


def decode(data: bytes, name: str) -> Image.Image:
    """The picture, decoded to its end.

    Args:
        data: a PNG, JPEG or WebP file.
        name: what an error calls it.

    Raises:
        PipelineError: it is no such file, or a broken one.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP"))
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PipelineError(f"{name}: the picture cannot be read ({error}).") from error
    return image
