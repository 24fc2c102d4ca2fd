"""A disk that is really full."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_job import images, pictures, run

import pipeline.scheduler
from pipeline.clean import clean
from pipeline.errors import Unavailable
from pipeline.storage import Storage

TIMEOUT_S = 2.0


def mount(folder: Path, options: str) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount(folder, "size=256k"):
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_what_does_not_fit_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    storage = Storage(str(small_disk / "set"))
    (tmp_path / "large").write_bytes(b"0" * (1 << 20))
    with pytest.raises(Unavailable, match="No space left on device"):
        storage.upload(str(tmp_path / "large"), "data/part")
    with pytest.raises(Unavailable, match="No space left on device"):
        storage.create("commits/part", b"0" * (1 << 20))
    assert storage.list() == []
    assert storage.remove_unfinished(lambda path: True) == []


def test_a_job_on_a_full_disk_goes_on_once_there_is_space(
    cluster: str, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.scheduler, "_PIECE_WAITS", (0.1, 1.0, 0.1))
    monkeypatch.setattr(pipeline.scheduler, "_NODE_RESTS", (0.1, 1.0, 0.1))
    job = pictures(tmp_path, "pictures", count=200)
    options = ["--output", str(small_disk / "set"), "--set", f"output.lease_timeout={TIMEOUT_S}"]
    result = run(job, *options)
    assert result.exit_code in (1, 3), result.output
    assert "No space left on device" in result.output
    storage = Storage(str(small_disk / "set"))
    before = images(storage)
    assert 0 < len(before) < 200
    assert mount(small_disk, "remount,size=64m")
    time.sleep(TIMEOUT_S + 1)  # there was no space to release the lease, and its process, this one, lives
    result = run(job, *options)
    assert result.exit_code == 0, result.output
    after = images(storage)
    assert len(after) == 200
    assert before.items() <= after.items()
    assert clean(storage.uri) == []
