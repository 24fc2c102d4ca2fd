"""`specdiff bench --workers`, through the pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_job import job_file

from pipeline.cli import main


def test_strong_and_weak_scaling(cluster: str, tmp_path: Path) -> None:
    job = job_file(tmp_path, target={"name": "fashion-mnist", "steps": 10})
    command = ["bench", str(job), "--workers", "2,1", "--images", "8", "--output", str(tmp_path / "found")]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "found" / "scaling.json").read_text())
    assert [(row["workers"], row["images"]) for row in report["strong"]] == [(1, 8), (2, 8)]
    assert [(row["workers"], row["images"]) for row in report["weak"]] == [(1, 8), (2, 16)]
    for curve in (report["strong"], report["weak"]):
        # On a busy machine the first worker may have done it all before the second is there.
        assert all(1 <= row["at_work"] <= row["workers"] for row in curve)
        assert curve[0]["speedup"] == curve[0]["efficiency"] == 1
        assert curve[1]["efficiency"] == pytest.approx(curve[1]["speedup"] / 2)
        assert curve[1]["speedup"] == pytest.approx(curve[1]["images_per_s"] / curve[0]["images_per_s"])
    assert report["shard_size"] == 1
    assert "strong" in (tmp_path / "found" / "scaling.txt").read_text()
    assert not (tmp_path / "job").exists(), "the job's own output is left alone"


@pytest.mark.parametrize("counts", ["0", "1,x", "2,-1"])
def test_numbers_of_workers_that_are_none(tmp_path: Path, counts: str) -> None:
    result = CliRunner().invoke(main, ["bench", str(job_file(tmp_path)), "--workers", counts])
    assert result.exit_code == 2
    assert "as in 1,2,4" in result.output
