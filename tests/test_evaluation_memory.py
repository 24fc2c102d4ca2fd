"""The memory of an evaluation does not grow with the number of images."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from committed_set import write_set

SMALL, LARGE = 2_000, 16_000
HELD = 4096 * (LARGE - SMALL) / 2**20  # MiB of features that a growing evaluation would hold: 55


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    np.savez(folder / "reference.npz", mu=np.zeros(1024), sigma=np.eye(1024))
    images = np.random.default_rng(0).integers(256, size=(LARGE, 8, 8, 1), dtype=np.uint8)
    for count in (SMALL, LARGE):
        write_set(folder / str(count), images[:count], files=count // 500)
    return folder


def peak(folder: Path, count: int, *hoard: str) -> float:
    """MiB."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "evaluation_memory.py"), str(folder / str(count) / "set")]
    path = os.pathsep.join([str(here), str(here.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [*command, str(folder / "reference.npz"), *hoard],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    images, memory = done.stdout.split()
    assert int(images) == count
    return float(memory)


def test_memory_does_not_grow_with_the_set(folder: Path) -> None:
    small = peak(folder, SMALL)
    assert peak(folder, LARGE) - small < HELD / 3
    assert peak(folder, LARGE, "hoard") - small > 2 * HELD / 3, "growth would have been seen"
