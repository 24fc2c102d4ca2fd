"""Local files for a while; nothing of them stays behind, however their process ends."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PREFIX = "specdiff-scratch-"  # nobody else would name a folder so
_YOUNG_S = 60.0  # a folder may not be locked yet


@contextmanager
def scratch_file() -> Iterator[str]:
    """Path, in this process alone, of an empty file that has no name: it is gone with the process."""
    with tempfile.TemporaryFile() as file:
        yield f"/proc/self/fd/{file.fileno()}"


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder that is locked as long as it is used; those that killed processes left unlocked are removed first."""
    for left in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}????????", "")):
        with suppress(OSError):  # in use, removed by another, or another user's
            if time.time() - os.stat(left).st_mtime > _YOUNG_S:
                with _locked(left):
                    shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _locked(folder):
        yield folder


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Raises BlockingIOError where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
