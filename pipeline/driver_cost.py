"""What a shard costs the driver, and whether memory grows with the rows: `python -m pipeline.driver_cost [ROWS]`.

A job of the null target, two workers on this machine, watched from outside. Start-up is left out: counting begins when
a hundredth of the shards are committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from pipeline.scratch import scratch_folder
from specdiff.environment import environment

ROWS, SHARD_SIZE, WORKERS = 100_000, 100, 2
EVERY_S = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Seen:
    """One look at a job.

    Attributes:
        shards: that are committed.
        driver_s, workers_s: CPU time so far.
        driver_mib, worker_mib: memory that is resident; of the larger worker.
    """

    shards: int
    driver_s: float
    workers_s: float
    driver_mib: float
    worker_mib: float


def measure(rows: int) -> dict[str, Any]:
    """Costs and memory of a job of so many rows. Raises RuntimeError where it does not end well."""
    shards = -(-rows // SHARD_SIZE)
    with scratch_folder() as folder:
        job = {
            "name": "driver-cost",
            "target": {"name": "noise", "steps": 2},
            "sampler": {"verification": "none", "lanes": SHARD_SIZE},
            "manifest": {"range": {"count": rows}},
            "output": {"uri": f"{folder}/set", "shard_size": SHARD_SIZE},
            "workers": {"count": WORKERS},
        }
        path = Path(folder, "job.yaml")
        path.write_text(yaml.safe_dump(job))
        command = [sys.executable, "-m", "pipeline.cli", "run", str(path)]
        with subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": ""}, stdout=subprocess.DEVNULL) as process:
            seen = list(watch(process, Path(folder, "set", "commits"), WORKERS))
        if process.returncode:
            raise RuntimeError(f"the job ended with exit status {process.returncode}")
    counted = [each for each in seen if each.shards >= shards / 100]
    first, last = ends(counted)
    tenths = [
        [each for each in counted if each.shards <= 0.1 * shards] or counted[:1],
        [each for each in counted if each.shards >= 0.9 * shards] or counted[-1:],
    ]
    done = last.shards - first.shards
    return {
        "rows": rows,
        "shard_size": SHARD_SIZE,
        "workers": WORKERS,
        "driver_cpu_s_per_shard": (last.driver_s - first.driver_s) / done,
        "worker_cpu_s_per_shard": (last.workers_s - first.workers_s) / done,
        "memory_mib_first_and_last_tenth": {
            name: [round(median(getattr(each, f"{name}_mib") for each in tenth), 1) for tenth in tenths]
            for name in ("driver", "worker")
        },
    }


def ends(seen: Sequence[Seen]) -> tuple[Seen, Seen]:
    """Two looks, each right after a shard was committed, between which as much was spent as their shards cost."""
    return seen[0], next(each for each in seen if each.shards == seen[-1].shards)


def watch(process: subprocess.Popen[bytes], commits: Path, workers: int) -> Iterator[Seen]:
    """Looks at a driver and so many workers again and again, while all of them are at work."""
    while process.poll() is None:
        there = [pid for pid in _descendants(process.pid) if _name(pid).startswith("ray::Worker")]
        if commits.exists() and len(there) == workers:
            try:
                memory = [_resident_mib(pid) for pid in (process.pid, *there)]
                cpu = [_cpu_s(pid) for pid in (process.pid, *there)]
            except OSError:  # one has just ended
                continue
            yield Seen(len(os.listdir(commits)), cpu[0], sum(cpu[1:]), memory[0], max(memory[1:]))
        time.sleep(EVERY_S)


def _descendants(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):  # each thread has its own
        with suppress(OSError):
            for child in map(int, listed.read_text().split()):
                yield child
                yield from _descendants(child)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _cpu_s(pid: int) -> float:
    """User and system time of all of a process's threads, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
    print(json.dumps(found | environment(torch.device("cpu")), indent=2))
