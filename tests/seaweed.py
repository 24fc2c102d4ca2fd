"""A real S3 server on loopback: SeaweedFS, which knows conditional puts and multipart uploads."""

from __future__ import annotations

import json
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import s3fs

START_LIMIT_S = 60
ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"


@dataclass
class Server:
    """A server and how to reach it; it may be killed and started again, on the same files."""

    endpoint: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        wait_until_ready(self, self.process)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which S3 clients find it and may use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def create_bucket(self, name: str) -> None:
        self.client().mkdir(name)

    def client(self) -> s3fs.S3FileSystem:
        return s3fs.S3FileSystem(
            key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=self.endpoint, skip_instance_cache=True
        )


@contextmanager
def seaweed(folder: Path) -> Iterator[Server]:
    """Runs a server whose files are in `folder` until the block ends."""
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir(exist_ok=True)
    names = ["master", "volume", "filer", "s3"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    grpc = dict(zip(names, free_ports(len(names)), strict=True))
    # beside the interpreter, since a virtual environment that is used by path is not on PATH
    weed = str(Path(sysconfig.get_path("scripts")) / "weed")
    command = [weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    command += [f"-{name}.port={port}" for name, port in ports.items()]
    command += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    command += ["-s3.port.lance=0", "-s3.port.iceberg=0", "-s3.autoCreateBucket=false", "-master.telemetry=false"]
    command += [f"-s3.config={folder / 'identities.json'}", "-volume.max=50", "-master.volumeSizeLimitMB=64"]
    server = Server(f"http://127.0.0.1:{ports['s3']}", command, folder / "server.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Until a bucket can be made and a file stored: the volume server joins last."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            client = server.client()
            client.makedirs("ready", exist_ok=True)
            client.pipe_file("ready/probe", b"probe")
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server does not start: {server.log.read_text()[-2000:]}") from error
            time.sleep(0.2)
