"""What a Prometheus server finds of a real run, and the dashboard that shows it."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest
import ray
from click.testing import CliRunner
from test_job import ROWS, job_file

from pipeline.cli import main

DASHBOARD = Path(__file__).parent.parent / "infra" / "grafana" / "specdiff.json"
WAIT_S = 60
NAME = re.compile(r"\bray_specdiff_[a-z_]+")


def scraped(port: int, job: str) -> dict[str, float]:
    """The metrics of a job as Ray's endpoint tells them, each summed over its other labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if (match := NAME.match(line)) and f'job="{job}"' in line:
            found[match[0]] = found.get(match[0], 0.0) + float(line.rsplit(" ", 1)[1])
    return found


@pytest.fixture(scope="module")
def metrics(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Those of a job that has just ended."""
    job = job_file(tmp_path_factory.mktemp("metered"), name="metered", target={"name": "fashion-mnist", "steps": 10})
    result = CliRunner().invoke(main, ["run", str(job)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    port = ray.nodes()[0]["MetricsExportPort"]
    deadline = time.monotonic() + WAIT_S
    while True:  # Ray reports every few seconds
        found = scraped(port, "metered")
        if found.get("ray_specdiff_images_total") == ROWS or time.monotonic() > deadline:
            return found
        time.sleep(1)


def test_every_metric_of_the_dashboard_exists(metrics: dict[str, float]) -> None:
    text = DASHBOARD.read_text()
    named = set(NAME.findall(text))
    assert len(named) > 15
    assert named <= metrics.keys()
    panels = json.loads(text)["panels"]
    assert all(NAME.search(target["expr"]) for panel in panels for target in panel["targets"])


def test_metrics_tell_what_was_done(metrics: dict[str, float]) -> None:
    assert metrics["ray_specdiff_images_total"] == ROWS
    assert metrics["ray_specdiff_steps_total"] == 10 * ROWS
    assert metrics["ray_specdiff_shards_total"] == 5
    assert metrics["ray_specdiff_images_planned"] == ROWS
    assert metrics["ray_specdiff_network_seconds_total"] > metrics["ray_specdiff_upload_seconds_total"] > 0
    for nothing in ("image_failures", "worker_deaths", "images_lost"):
        assert metrics[f"ray_specdiff_{nothing}_total"] == pytest.approx(0)
