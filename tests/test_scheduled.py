"""Ten days of a schedule with real sets: missed days, a crash, an overrun, retention; each row of each day once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_job import finish, hashes, images, wait_for_records

from pipeline.dated_job import resolved
from pipeline.run import run
from pipeline.scheduled import Turn
from pipeline.signals import Signals
from pipeline.spec import Job, load_job
from pipeline.storage import Storage
from pipeline.verify import verify

ROWS = 12
DRIVER = """
import os, sys, faults, ray
from datetime import datetime
from pipeline.scheduled import Turn
from pipeline.signals import Signals
from pipeline.spec import load_job
faults.register_targets()
ray.init(
    address=os.environ["RAY_ADDRESS"],
    log_to_driver=False,
    runtime_env={"worker_process_setup_hook": "faults.register_targets"},
)
job, now = load_job(sys.argv[1]), datetime.fromisoformat(sys.argv[2])
with Signals() as signals:
    turn = Turn(job, job.schedule, limit=None, retry_failed=False, signals=signals, say=print)
    turn.make_due(lambda: now)
sys.exit(turn.exit_status)
"""


def at(day: int, hour: int = 2, minute: int = 5) -> datetime:
    """A time in March 2026."""
    return datetime(2026, 3, day, hour, minute, tzinfo=timezone.utc)


class Calendar:
    """A scheduled job, and what its sets were seen to hold."""

    def __init__(self, folder: Path, **schedule: Any) -> None:
        self.folder = folder
        self.file = folder / "job.yaml"
        job = {
            "name": "nightly",
            "target": {"name": "pictures-slow", "steps": 20},
            "sampler": {"lanes": 1},
            "manifest": {"range": {"count": ROWS}},
            "output": {"uri": f"{folder}/sets/{{date}}", "shard_size": 2},
            "schedule": {"cron": "0 2 * * *", "notify": {"command": f"cat >> {folder}/told"}, **schedule},
        }
        self.file.write_text(yaml.safe_dump(job))
        self.job = load_job(str(self.file))
        self.seen: dict[str, dict[int, tuple[str, int, int]]] = {}

    def turn(self, now: datetime) -> tuple[int, list[str]]:
        """A look at the schedule at some time, in this process: exit status and lines."""
        lines: list[str] = []
        assert self.job.schedule is not None
        with Signals() as signals:
            turn = Turn(self.job, self.job.schedule, limit=None, retry_failed=False, signals=signals, say=lines.append)
            turn.make_due(lambda: now)
        self.look()
        return turn.exit_status, lines

    def start(self, now: datetime) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        command = [sys.executable, "-c", DRIVER, str(self.file), now.isoformat()]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def storage(self, day: int) -> Storage:
        return Storage(f"{self.folder}/sets/2026-03-{day:02}")

    def look(self) -> None:
        """Whole sets hold each row of their own day once, and never change."""
        for name in self.days():
            storage = Storage(f"{self.folder}/sets/{name}")
            if len(storage.list("commits/")) < ROWS / 2:
                continue
            assert verify(storage.uri, deep=False).whole
            rows = resolved(self.job, datetime.fromisoformat(f"{name}T00:00+00:00")).manifest.range
            assert rows is not None
            assert sorted(hashes(storage)) == list(range(rows.seed, rows.seed + ROWS))
            assert self.seen.setdefault(name, hashes(storage)) == hashes(storage)

    def days(self) -> list[str]:
        folder = self.folder / "sets"
        return sorted(each.name for each in folder.iterdir() if (each / "job.json").exists() and each.name > "2026-03")

    def told(self) -> Counter[tuple[str, str]]:
        messages = map(json.loads, (self.folder / "told").read_text().splitlines())
        return Counter((message["run"][:10], message["outcome"]) for message in messages)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ten_days(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path, missed="catch_up", advance_seeds=True, keep=4)
    assert calendar.turn(at(1))[0] == 0
    foreign = tmp_path / "sets" / "2026-02-20"
    shutil.copytree(tmp_path / "sets" / "2026-03-01", foreign)
    document = (foreign / "job.json").read_text()
    (foreign / "job.json").write_text(document.replace('"name": "nightly"', '"name": "by hand"'))
    untouched = {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()}

    # Nobody looked on the 2nd.
    status, lines = calendar.turn(at(3, 9))
    assert status == 0
    assert [line for line in lines if line.startswith("run of")] == ["run of 2026-03-02", "run of 2026-03-03"]

    crashed = calendar.start(at(4))
    wait_for_records(calendar.storage(4), 1, crashed)
    crashed.send_signal(signal.SIGKILL)
    finish(crashed)
    assert 0 < len(images(calendar.storage(4))) < ROWS
    assert calendar.turn(at(5))[0] == 0
    assert calendar.days() == [f"2026-03-0{day}" for day in (2, 3, 4, 5)]

    overrunning = calendar.start(at(6))
    wait_for_records(calendar.storage(6), 1, overrunning)
    overrunning.send_signal(signal.SIGSTOP)
    status, lines = calendar.turn(at(7))
    assert status == 0
    assert any("another driver is at work there" in line for line in lines)
    assert len(images(calendar.storage(7))) == ROWS
    overrunning.send_signal(signal.SIGCONT)
    output, status = finish(overrunning)
    assert status == 0, output
    calendar.look()

    (tmp_path / "sets" / "2026-03-04" / "notes.txt").write_text("the user's own")
    for day in (8, 10):  # and on the 9th nobody looked
        for hour in (2, 3, 23):
            assert calendar.turn(at(day, hour))[0] == 0
    assert calendar.days() == [f"2026-03-{day:02}" for day in (7, 8, 9, 10)]
    assert [path.name for path in (tmp_path / "sets" / "2026-03-04").rglob("*")] == ["notes.txt"]
    assert not (tmp_path / "sets" / "2026-03-01").exists()
    assert {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()} == untouched

    assert sorted(calendar.seen) == [f"2026-03-{day:02}" for day in range(1, 11)], "no day was lost"
    seeds = Counter(seed for rows in calendar.seen.values() for seed in rows)
    assert len(seeds) == 10 * ROWS
    assert set(seeds.values()) == {1}, "no seed was made on two days"
    assert calendar.told() == Counter({(day, "success"): 1 for day in calendar.seen})

    shutil.rmtree(tmp_path / "sets")
    make(calendar.job, at(4, 0, 0))
    assert hashes(calendar.storage(4)) == calendar.seen["2026-03-04"], "after the crash the same bytes"


@pytest.mark.usefixtures("cluster")
def test_a_run_that_is_refused_keeps_no_other_from_being_made(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path)
    make(calendar.job, at(1, 0, 0), limit=2)
    calendar.file.write_text(calendar.file.read_text().replace("steps: 20", "steps: 10"))
    changed = load_job(str(calendar.file))
    assert changed.target.steps == 10
    calendar.job = changed
    status, lines = calendar.turn(at(2))
    assert status == 2
    assert any("target.steps: 20 there, 10 here" in line for line in lines)
    assert len(images(calendar.storage(2))) == ROWS
    assert calendar.told() == Counter({("2026-03-01", "failure"): 1, ("2026-03-02", "success"): 1})
    status, _ = calendar.turn(at(2, 3))
    assert status == 2


def make(job: Job, day: datetime, limit: int | None = None) -> None:
    with Signals() as signals:
        assert run(resolved(job, day), limit=limit, retry_failed=False, signals=signals, say=print) == 0
