"""Scratch files and folders of processes that end in order, and of those that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.scratch import scratch_file, scratch_folder

KILLED = """
import os
from pathlib import Path
from pipeline.scratch import scratch_file, scratch_folder
with scratch_file() as file, scratch_folder() as folder:
    Path(file).write_bytes(b"1")
    Path(folder, "inside").write_bytes(b"1")
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for temporary files of its own, in this process and those it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_file_is_like_any_other_and_has_no_name(temporary: Path) -> None:
    with scratch_file() as path:
        Path(path).write_bytes(b"something long")
        Path(path).write_bytes(b"short")
        assert Path(path).read_bytes() == b"short"
        assert os.path.getsize(path) == 5
        assert not list(temporary.iterdir())


def test_what_killed_processes_left_is_removed_and_what_is_in_use_is_not(temporary: Path) -> None:
    here = os.pathsep.join(sys.path)
    killed = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "PYTHONPATH": here}, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    (temporary / "specdiff-scratch").mkdir()
    with scratch_folder() as used:
        assert left.exists(), "it may have been made this very moment"
        for folder in (left, Path(used), temporary / "specdiff-scratch"):
            os.utime(folder, (0, 0))
        with scratch_folder():
            assert not left.exists()
            assert Path(used).exists()
    assert [path.name for path in temporary.iterdir()] == ["specdiff-scratch"]
