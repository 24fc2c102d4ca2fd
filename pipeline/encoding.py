"""Pixels to the bytes of an image file, and the digest that names pixels whatever their file."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Fixed, and part of a set's identity, because its bytes must not depend on a library's default. Level 6 is where PNG
# stops shrinking. JPEG is the only one that loses anything: at this quality and with whole colour, little.
SETTINGS: dict[str, dict[str, Any]] = {
    "png": {"compress_level": 6},
    "jpeg": {"quality": 95, "subsampling": "4:4:4"},
    "webp": {"lossless": True, "quality": 60, "method": 4, "exact": True},
}
LOSSLESS = ("png", "webp")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def encode(pixels: NDArray[np.uint8], image_format: str) -> bytes:
    """An image file.

    Args:
        pixels: uint8 [height, width, channels], with 1 (grey), 3 or 4 channels.
        image_format: a key of `SETTINGS`.

    Raises:
        ValueError: another type, shape or number of channels, or one that the format cannot hold.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _MODES:
        raise ValueError(f"not uint8 pixels of 1, 3 or 4 channels: {pixels.dtype} {list(pixels.shape)}")
    if image_format == "jpeg" and pixels.shape[2] == 4:
        raise ValueError("JPEG cannot hold transparency; choose png or webp")
    flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(flat)).save(buffer, image_format.upper(), **SETTINGS[image_format])
    return buffer.getvalue()


def pixel_sha256(pixels: NDArray[np.uint8]) -> str:
    """Hex digest of the C-order bytes of uint8 [height, width, channels]."""
    return hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()
