"""A saved pipeline through `specdiff run`, and `sampler.verification: auto`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from PIL import Image
from pipelines import ddpm, latent_dit

from pipeline.cli import main
from pipeline.errors import UsageError
from pipeline.spec import load_job
from specdiff import Request, Sampler, load_target

STEPS = 12


def invoke(*command: str) -> Result:
    return CliRunner().invoke(main, list(command), catch_exceptions=False)


def job_file(folder: Path, **sections: Any) -> Path:
    job: dict[str, Any] = {
        "name": "job",
        "sampler": {"lanes": 4, "draft_length": 3},
        "output": {"uri": str(folder / "out"), "shard_size": 5},
        "workers": {"count": 1},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job | sections))
    return path


def pictures(folder: Path) -> dict[str, NDArray[np.uint8]]:
    rows = [row for path in sorted(folder.glob("data/*.parquet")) for row in pq.read_table(path).to_pylist()]
    return {row["key"]: np.asarray(Image.open(io.BytesIO(row["image"]["bytes"]))) for row in rows}


def test_a_folder_through_ray(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latents, labels and guidance in one manifest; a relative path; the pictures are the sampler's own."""
    monkeypatch.chdir(tmp_path)
    latent_dit(tmp_path / "model", size=4)
    lines = ["seed,label,guidance_scale"]
    lines += [f"{i},{i % 3 if i % 4 else ''},{('', '1', '4.0', '7.5')[i % 4]}" for i in range(13)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    target = {"name": "model", "steps": STEPS, "variance": "fixed_small"}
    job = job_file(tmp_path, target=target, manifest={"path": "rows.csv"})
    assert invoke("check", str(job)).exit_code == 0
    found = invoke("run", str(job))
    assert found.exit_code == 0, found.output
    told = json.loads((tmp_path / "out" / "job.json").read_text())
    assert told["job"]["target"]["name"] == str(tmp_path / "model")
    assert len(told["target"]["weights_sha256"]) == len(told["identity"]["target"]["config_sha256"]) == 64

    requests = [
        Request(f"{i:012}", i, label=i % 3 if i % 4 else None, guidance_scale=(None, 1, 4.0, 7.5)[i % 4])
        for i in range(13)
    ]
    sampler = Sampler(
        load_target("model", steps=STEPS, variance="fixed_small"), draft_length=3, lanes=13, batch_rows=16
    )
    made = pictures(tmp_path / "out")
    assert len(made) == 13
    for sample in sampler.sample(requests).samples:
        assert (made[sample.key] == sample.image).all()
    report = json.loads((tmp_path / "out" / "report" / "report.json").read_text())
    assert report["sampler"]["guidance_rows"] > 0
    verified = invoke("verify", str(tmp_path / "out"), "--deep")
    assert verified.exit_code == 0, verified.output
    assert "made again: the same as they were" in verified.output

    # elsewhere it is the same model, with other weights it is not
    (tmp_path / "model").rename(tmp_path / "moved")
    again = invoke("run", str(job), "--set", "target.name=moved")
    assert again.exit_code == 0, again.output
    assert "nothing to generate" in again.output


def test_auto_is_sequential_where_drafts_are_refused(cluster: str, tmp_path: Path) -> None:
    """Few steps of many dimensions; what the pilot chose stands in job.json, and a rerun goes by it."""
    model = ddpm(tmp_path / "model", size=16, channels=3)
    sections = {"target": {"name": model, "steps": 5}, "manifest": {"range": {"count": 3}}}
    job = job_file(tmp_path, **sections, sampler={"lanes": 4, "draft_length": 3, "verification": "auto"})
    assert "as a pilot says at the beginning" in invoke("check", str(job)).output
    found = invoke("run", str(job))
    assert found.exit_code == 0, found.output
    assert "auto is `none`: a pilot kept 0% of drafts, 1.00 steps a call" in found.output
    assert "warning" not in found.output
    told = json.loads((tmp_path / "out" / "job.json").read_text())
    assert told["identity"]["sampler"]["verification"] == told["job"]["sampler"]["verification"] == "none"
    sampler = Sampler(load_target(model, steps=5), verification="none", lanes=4)
    for sample in sampler.sample([Request(f"{i:012}", i) for i in range(3)]).samples:
        assert (pictures(tmp_path / "out")[sample.key] == sample.image).all()
    again = invoke("run", str(job))
    assert again.exit_code == 0, again.output
    assert "pilot" not in again.output
    assert "nothing to generate" in again.output

    told_so = invoke("run", str(job), "--set", "sampler.verification=block", "--output", str(tmp_path / "block"))
    assert told_so.exit_code == 0, told_so.output
    assert "speculation hardly helps here: 0.0% of drafts were kept" in told_so.output


def test_auto_speculates_where_it_pays(cluster: str, tmp_path: Path) -> None:
    """And a wrong manifest is refused before the pilot."""
    sections = {"target": {"name": "fashion-mnist", "steps": 60}, "sampler": {"lanes": 4, "verification": "auto"}}
    job = job_file(tmp_path, **sections, manifest={"range": {"count": 2, "labels": "cycle"}})
    refused = invoke("run", str(job), "--set", "manifest.range.labels=[11]")
    assert refused.exit_code == UsageError.exit_code
    assert "pilot" not in refused.output
    found = invoke("run", str(job))
    assert found.exit_code == 0, found.output
    assert "auto is `block`: a pilot kept" in found.output
    told = json.loads((tmp_path / "out" / "job.json").read_text())
    assert told["identity"]["sampler"]["verification"] == "block"
    assert told["identity"]["sampler"]["batch_rows"] == 4 * 8


def test_auto_means_reflection_with_picard(tmp_path: Path) -> None:
    sections = {"target": {"name": "fashion-mnist"}, "sampler": {"verification": "auto", "drafter": "picard"}}
    job = load_job(str(job_file(tmp_path, **sections, manifest={"range": {"count": 2, "labels": "cycle"}})))
    assert job.sampler.rule == "reflection"
