"""A job whose driver, workers and storage server are killed again and again ends whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from faults import MARKS
from seaweed import Server, seaweed
from test_job import hashes, job_file, run

from pipeline.cli import main
from pipeline.storage import Storage

ROWS, SHARD_SIZE, WORKERS, KILLS = 200, 2, 3, 15
APART = 4  # shards committed between one kill and the next, so that each strikes work, and shards are left at the end
# Rows that are lost at most: a worker is given three pieces at a time.
LOST = {"worker": 3 * SHARD_SIZE, "driver": WORKERS * 3 * SHARD_SIZE, "server": WORKERS * 3 * SHARD_SIZE}
LIMIT_S = 900
DRIVER = """
import json, os, sys, faults, ray
from pipeline.cli import main
faults.register_targets()
environment = {"worker_process_setup_hook": "faults.register_targets", "env_vars": json.loads(sys.argv.pop(1))}
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, runtime_env=environment)
main()
"""


class Chaos:
    """The processes of a job, and what is known of its rows."""

    def __init__(self, job: Path, server: Server, storage: Storage, seed: int) -> None:
        self.job, self.server, self.storage = job, server, storage
        self.log = job.with_suffix(".log")
        self.chance = random.Random(seed)
        self.deadline = time.monotonic() + LIMIT_S
        self.restarts = 0  # of drivers that ended by themselves, as the server was away
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", DRIVER, json.dumps(self.server.environment), "run", str(self.job)]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def begun(self) -> int:
        """Rows that workers ever began."""
        return sum(len(path.read_text().splitlines()) for path in Path(os.environ[MARKS]).glob("begun-*"))

    def workers(self) -> list[int]:
        """Processes of workers that live."""
        found = []
        for path in Path(os.environ[MARKS]).glob("begun-*"):
            pid = int(path.name.partition("-")[2])
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Worker"):
                    found.append(pid)
        return found

    def tend(self) -> None:
        """Starts the driver again where it ended before all was done."""
        assert time.monotonic() < self.deadline, self.log.read_text()
        if self.driver.poll() is not None and self.driver.returncode:
            self.restarts += 1
            self.driver = self.start()
        time.sleep(0.1)

    def wait_for_shards(self, count: int) -> None:
        while len(self.storage.list("commits/")) < count:
            self.tend()

    def kill(self, what: str) -> None:
        """Kills one that is certainly alive."""
        if what == "driver":
            while self.driver.poll() is not None:
                self.tend()
            self.driver.kill()
            self.driver.wait()
            self.driver = self.start()
        elif what == "worker":
            killed = False
            while not killed:
                for pid in sorted(self.workers(), key=lambda pid: self.chance.random())[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed = True
                self.tend()
        else:
            self.server.kill()
            time.sleep(self.chance.uniform(0, 3))
            self.server.start()

    def finish(self) -> None:
        while self.driver.poll() != 0:
            self.tend()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_case_10_chaos(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    plain = job_file(
        tmp_path, "plain", target={"name": "pictures", "steps": 20}, manifest={"range": {"count": ROWS}},
        sampler={"lanes": 2}, output={"shard_size": SHARD_SIZE},
    )  # fmt: skip
    assert run(plain).exit_code == 0
    with seaweed(tmp_path) as server:
        server.create_bucket("chaos")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        job = job_file(
            tmp_path, "chaos", target={"name": "pictures-logged", "steps": 20}, manifest={"range": {"count": ROWS}},
            sampler={"lanes": 2}, output={"uri": "s3://chaos/set", "shard_size": SHARD_SIZE},
            workers={"count": WORKERS},
        )  # fmt: skip
        storage = Storage("s3://chaos/set")
        chaos = Chaos(job, server, storage, seed)
        kills = ["driver", "worker", "server"] * (KILLS // 3)
        chaos.chance.shuffle(kills)
        try:
            for number, what in enumerate(kills, 1):
                chaos.wait_for_shards(number * APART)
                chaos.kill(what)
            left = ROWS // SHARD_SIZE - len(storage.list("commits/"))
            chaos.finish()
        finally:
            chaos.driver.kill()
        assert left > 0, "the last kill came when everything was done"
        lost = sum(LOST[what] for what in kills) + LOST["driver"] * chaos.restarts
        print(f"{chaos.begun()} rows begun, {left} shards left at the last kill, {chaos.restarts} restarts")
        assert ROWS < chaos.begun() <= ROWS + lost
        assert hashes(storage) == hashes(Storage(str(tmp_path / "plain")))
        result = CliRunner().invoke(main, ["verify", storage.uri, "--deep"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
