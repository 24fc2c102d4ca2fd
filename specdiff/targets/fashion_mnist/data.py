"""Fashion-MNIST from the IDX files that Debian's package ``dataset-fashion-mnist`` installs."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DEFAULT_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def load_split(split: str, folder: Path = DEFAULT_FOLDER) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read one split.

    Args:
        split: ``train`` (60,000 images) or ``t10k`` (10,000).
        folder: where the four ``.gz`` files lie.

    Returns:
        Images, uint8 [count, 28, 28], and labels, uint8 [count].

    Raises:
        FileNotFoundError: with the package to install.
    """
    try:
        images = gzip.decompress((folder / f"{split}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{split}-labels-idx1-ubyte.gz").read_bytes())
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error.filename}: not found. Install Debian's package dataset-fashion-mnist, "
            "or name the folder that holds the four .gz files of Fashion-MNIST."
        ) from error
    # IDX: a 16-byte header before images, an 8-byte one before labels.
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(labels, np.uint8, offset=8)
