"""A Ray cluster on this machine with a dashboard and a token, as `ray start` makes it; it may be killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seaweed import free_ports

START_LIMIT_S = 90
_MARK = "SPECDIFF_TEST_HEAD"


class Head:
    """The cluster's processes, and how to reach them."""

    def __init__(self, environment: dict[str, str]) -> None:
        """`environment`: what its jobs find there, besides the tests' own."""
        # Short: the paths of Ray's sockets must be.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.token = secrets.token_hex(16)
        self._mark = secrets.token_hex(16)
        scripts = sysconfig.get_path("scripts")  # of a virtual environment that is used by path
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
        self._environment = {
            **inherited,
            **environment,
            _MARK: self._mark,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }
        self._ray = str(Path(scripts) / "ray")
        self.address = ""

    def start(self) -> None:
        """Returns when its Jobs API answers."""
        ports = free_ports(7)
        names = ["port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port"]
        names += ["ray-client-server-port", "metrics-export-port", "runtime-env-agent-port"]
        command = [self._ray, "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
        command += ["--dashboard-host=127.0.0.1", "--disable-usage-stats", f"--object-store-memory={100 << 20}"]
        command += [f"--temp-dir={self.folder}", *(f"--{n}={p}" for n, p in zip(names, ports, strict=True))]
        self.address = f"http://127.0.0.1:{ports[1]}"
        with (self.folder / "start.log").open("ab") as log:
            subprocess.Popen(command, env=self._environment, stdout=log, stderr=subprocess.STDOUT)
        request = urllib.request.Request(f"{self.address}/api/jobs/", headers={"Authorization": f"Bearer {self.token}"})
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5):
                    return
            except (OSError, urllib.error.URLError) as error:
                if time.monotonic() > deadline:
                    log_text = (self.folder / "start.log").read_text()[-2000:]
                    raise RuntimeError(f"the cluster does not start: {log_text}") from error
                time.sleep(0.3)

    def kill(self) -> None:
        """Kills every process of the cluster and of its jobs at once."""
        while pids := self._processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def _processes(self) -> list[int]:
        """Those that inherited our mark, and still run."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                running = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if running and f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found


@contextmanager
def ray_head(environment: dict[str, str]) -> Iterator[Head]:
    """Runs a cluster until the block ends."""
    head = Head(environment)
    try:
        head.start()
        yield head
    finally:
        head.kill()
        shutil.rmtree(head.folder, ignore_errors=True)
