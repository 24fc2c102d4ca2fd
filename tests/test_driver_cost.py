"""What the pipeline costs beside the sampler: flat memory, a cheap driver, and nearly all of the CPU for images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.driver_cost import ends, measure, watch

RECORD = Path(__file__).parent.parent / "docs" / "records" / "driver-cost.json"
ROWS, SHARD_SIZE, STEPS = 208, 16, 50
LOOP = """
import json, sys, time
import torch, specdiff
torch.set_num_threads(1)
torch.backends.cudnn.deterministic = True
rows, steps = map(int, sys.argv[1:])
sampler = specdiff.Sampler(specdiff.load_target("fashion-mnist", steps=steps))
requests = (specdiff.Request(f"{row:012}", row, label=row % 10) for row in range(rows))
print(json.dumps([time.process_time() for sample in sampler.stream(requests)]))
"""


@pytest.mark.parametrize("rows", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_case_16_memory_and_cost_of_a_long_job(rows: int) -> None:
    found = measure(rows)
    for first, last in found["memory_mib_first_and_last_tenth"].values():
        assert abs(last / first - 1) < 0.1, found
    assert found["driver_cpu_s_per_shard"] < found["worker_cpu_s_per_shard"] / 2, "of workers that do next to nothing"


def test_the_record_is_of_the_full_job() -> None:
    record = json.loads(RECORD.read_text())
    assert record["rows"] == 100_000
    assert record["driver_cpu_s_per_shard"] < record["worker_cpu_s_per_shard"] / 2


@pytest.mark.slow
def test_nearly_all_cpu_time_makes_images(tmp_path: Path) -> None:
    """Images a CPU-second of driver and worker, of those of a bare loop over `Sampler.stream`.

    Both are counted from the 33rd image to the 33rd before the last, so that neither start-up nor the lanes that run
    empty at the end count; and at the same time, since on a busy machine a CPU-second is worth less.
    """
    edge = 2 * SHARD_SIZE
    job = {
        "name": "efficiency",
        "target": {"name": "fashion-mnist", "steps": STEPS},
        "manifest": {"range": {"count": ROWS, "labels": "cycle"}},
        "output": {"uri": str(tmp_path / "set"), "shard_size": SHARD_SIZE},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    loop = [sys.executable, "-c", LOOP, str(ROWS), str(STEPS)]
    run = [sys.executable, "-m", "pipeline.cli", "run", str(tmp_path / "job.yaml")]
    with (
        subprocess.Popen(loop, stdout=subprocess.PIPE, text=True) as bare,
        subprocess.Popen(run, env={**os.environ, "RAY_ADDRESS": ""}) as process,
    ):
        seen = [
            each
            for each in watch(process, tmp_path / "set" / "commits", workers=1)
            if edge <= each.shards * SHARD_SIZE <= ROWS - edge
        ]
        times = json.loads(bare.communicate()[0])
    assert process.returncode == 0
    assert len(times) == ROWS
    first, last = ends(seen)
    spent = (last.driver_s - first.driver_s + last.workers_s - first.workers_s) / (last.shards - first.shards)
    efficiency = (times[-1 - edge] - times[edge - 1]) / (ROWS - 2 * edge) / (spent / SHARD_SIZE)
    print(f"efficiency {efficiency:.3f}")
    assert efficiency >= 0.95
