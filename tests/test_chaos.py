"""A job whose driver, workers and storage server are killed again and again ends whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from faults import MARKS
from seaweed import Server, seaweed
from test_job import hashes, job_file, run

from pipeline.cli import main
from pipeline.commits import committed
from pipeline.storage import Storage

ROWS, KILLS = 200, 15
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
        self.chance = random.Random(seed)
        self.lost = 0
        self.driver = self.start()

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, json.dumps(self.server.environment), "run", str(self.job)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def begun(self) -> int:
        """Rows that workers ever began."""
        return sum(len(path.read_text().splitlines()) for path in Path(os.environ[MARKS]).glob("begun-*"))

    def committed(self) -> int:
        return sum(record.written for record in committed(self.storage))

    def workers(self) -> Iterator[int]:
        """Processes of workers that live."""
        for path in Path(os.environ[MARKS]).glob("begun-*"):
            pid = int(path.name.partition("-")[2])
            try:
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Worker"):
                    yield pid
            except OSError:
                continue

    def wait_for_work(self) -> bool:
        """Until a driver has got something done and chance says so. False when the job has ended well."""
        before, deadline = self.committed(), time.monotonic() + 120
        while self.committed() == before:
            assert time.monotonic() < deadline, "nothing is done any more"
            if self.driver.poll() is not None:
                if self.driver.returncode == 0:
                    return False
                self.driver = self.start()
            time.sleep(0.2)
        time.sleep(self.chance.uniform(0, 3))
        return True

    def kill(self, what: str) -> None:
        before, committed_before = self.begun(), self.committed()
        if what == "driver":
            self.driver.kill()
            self.driver.wait()
            self.driver = self.start()
        elif what == "worker":
            os.kill(self.chance.choice(list(self.workers())), signal.SIGKILL)
        else:
            self.server.kill()
            time.sleep(self.chance.uniform(0, 5))
            self.server.start()
        self.lost += before - committed_before


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", [0])
def test_case_10_chaos(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    plain = job_file(
        tmp_path, "plain", target={"name": "pictures", "steps": 20}, manifest={"range": {"count": ROWS}},
        sampler={"lanes": 2}, output={"shard_size": 2},
    )  # fmt: skip
    assert run(plain).exit_code == 0
    with seaweed(tmp_path) as server:
        server.create_bucket("chaos")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        job = job_file(
            tmp_path, "chaos", target={"name": "pictures-logged", "steps": 20}, manifest={"range": {"count": ROWS}},
            sampler={"lanes": 2}, output={"uri": "s3://chaos/set", "shard_size": 2}, workers={"count": 3},
        )  # fmt: skip
        storage = Storage("s3://chaos/set")
        chaos = Chaos(job, server, storage, seed)
        kills = ["driver", "worker", "server"] * (KILLS // 3)
        chaos.chance.shuffle(kills)
        done = []
        deadline = time.monotonic() + LIMIT_S
        try:
            while kills and chaos.wait_for_work():
                done.append(kills.pop())
                chaos.kill(done[-1])
            while chaos.driver.wait(deadline - time.monotonic()) != 0:
                assert time.monotonic() < deadline, chaos.driver.communicate()[0]
                chaos.driver = chaos.start()
        finally:
            chaos.driver.kill()
        assert len(done) >= 2 * KILLS // 3, "the job ended too soon to show anything"
        assert set(done) == {"driver", "worker", "server"}
        assert chaos.begun() <= ROWS + chaos.lost
        assert hashes(storage) == hashes(Storage(str(tmp_path / "plain")))
        result = CliRunner().invoke(main, ["verify", storage.uri, "--deep"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
