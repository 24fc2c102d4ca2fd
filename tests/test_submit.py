"""Jobs submitted to a cluster: what is sent, under which name, with which exit status, and what errors say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ray_head import ray_head
from seaweed import Server
from test_job import hashes, job_file

from pipeline.cli import main
from pipeline.errors import Unavailable, UsageError
from pipeline.package import pack
from pipeline.ray_jobs import Attempt, RayJobs
from pipeline.spec import load_job
from pipeline.storage import Storage
from pipeline.submit import outcome, submission_name

ROWS = 24
WAIT_S = 180


@pytest.fixture
def s3(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in S3, and an environment by which it is found."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://test-bucket/submit-{os.urandom(4).hex()}"


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_the_job_file_and_a_local_manifest_are_sent_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text(f"seed,label\n{ord(name[0])},1\n")
    job = load_job(
        str(job_file(tmp_path, output={"uri": "s3://bucket/set"}, manifest={"path": f"{tmp_path}/*.csv"})),
        ["sampler.lanes=3"],
    )
    package = tmp_path / "package"
    package.mkdir()
    pack(job, str(package))
    sent = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert sent == {"job.yaml", "manifest/00000.csv", "manifest/00001.csv"}
    assert "97" in (package / "manifest" / "00000.csv").read_text(), "in the order of their names"
    there = load_job(str(package / "job.yaml"))
    assert there == job.model_copy(update={"manifest": job.manifest.model_copy(update={"path": "manifest/*"})})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["output.uri=out/set"], "output.uri: out/set would be lost"),
        (["evaluate.reference=ref.npz"], "evaluate.reference: ref.npz is not sent along"),
        (["evaluate.reference='*.npz'"], "is not sent along"),
        (["target.name=./model"], "target.name: ./model is not sent along"),
        (["manifest={path: big.csv}"], "at most 100 are sent along; put it into S3"),
        (["manifest={path: absent.csv}"], "absent.csv: no such file"),
    ],
)
def test_what_only_this_machine_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.npz").touch()
    (tmp_path / "model").mkdir()
    with (tmp_path / "big.csv").open("wb") as file:
        file.truncate(200 << 20)
    path = job_file(tmp_path, output={"uri": "s3://bucket/set"}, evaluate={"reference": "fashion-mnist"})
    with pytest.raises(UsageError, match=expected):
        pack(load_job(str(path), overrides), str(tmp_path))


def test_the_name_tells_the_job_its_output_and_the_run(tmp_path: Path) -> None:
    job = load_job(str(job_file(tmp_path, "My Set (v2)", output={"uri": "s3://bucket/set"})))
    name = submission_name(job, "")
    assert name.startswith("specdiff-my-set-v2-")
    assert submission_name(job, "2026-03-01T02:00Z") == f"{name}-2026-03-01T0200Z"
    slash = job.model_copy(update={"output": job.output.model_copy(update={"uri": "s3://bucket/set/"})})
    other = job.model_copy(update={"output": job.output.model_copy(update={"uri": "s3://bucket/other"})})
    assert submission_name(slash, "") == name
    assert submission_name(other, "") != name


@pytest.mark.parametrize(
    ("status", "exit_code", "expected", "reason"),
    [
        ("SUCCEEDED", 0, 0, ""),
        ("FAILED", 1, 1, ""),
        ("FAILED", 2, 2, ""),
        ("FAILED", 3, 3, ""),
        ("FAILED", 127, 2, "not installed on the cluster"),
        ("FAILED", 137, 3, "ended from outside (exit status 137)"),
        ("FAILED", None, 3, "ended from outside (the node died)"),
        ("STOPPED", None, 3, "was stopped"),
    ],
)
def test_exit_statuses(status: str, exit_code: int | None, expected: int, reason: str) -> None:
    code, said = outcome(Attempt("specdiff-x-1", 1, status, exit_code, "the node died", ""))
    assert code == expected
    assert reason in said
    assert bool(said) == bool(reason)


class Dashboard(BaseHTTPRequestHandler):
    """Answers each request alike."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "error", "expected"),
    [
        (200, json.dumps({"ray_version": "1.13.0"}), UsageError, "Ray version 1.13.0 is running on the cluster"),
        (200, "<html>hello</html>", UsageError, "what answers there is not a Ray dashboard"),
        (200, "{}", UsageError, "what answers there is not a Ray dashboard"),
        (404, "", UsageError, "none that this Ray can speak to"),
        (502, "", Unavailable, "does not answer as it should"),
        (401, "", UsageError, "asks for a token, and there is none: set RAY_AUTH_TOKEN"),
    ],
)
def test_what_is_no_cluster_of_ours(
    dashboard: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: str,
    error: type[Exception],
    expected: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")  # must not be taken for the dashboard's
    monkeypatch.setattr(Dashboard, "status", status)
    monkeypatch.setattr(Dashboard, "body", body.encode())
    with pytest.raises(error, match=expected):
        RayJobs(dashboard)
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:9"


def test_a_token_that_is_refused_is_named_by_its_origin(
    dashboard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dashboard, "status", 403)
    (tmp_path / "token").write_text("hunter2\n")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UsageError, match="refuses the token that RAY_AUTH_TOKEN_PATH holds") as caught:
        RayJobs(dashboard)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["ftp://host:1", "http://", "http://user:hunter2@host:1", "host:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="--address: expected that of the cluster's dashboard") as caught:
        RayJobs(address)
    assert "hunter2" not in str(caught.value)


def test_a_cluster_that_is_not_there_and_a_job_file_that_is_wrong(tmp_path: Path) -> None:
    job = str(job_file(tmp_path))  # its output is an absolute path, which is not looked at
    result = cli("submit", job, "--address", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "http://127.0.0.1:9: nothing answers there (Connection refused)" in result.output
    result = cli("submit", job, "--set", "sampler.lanes=0", "--address", "http://127.0.0.1:9")
    assert result.exit_code == 2
    result = cli("submit", job, "--date", "2026-03-01")
    assert result.exit_code == 2
    assert "the job has no `schedule`" in result.output


@pytest.mark.slow
def test_a_cluster_end_to_end(server: Server, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitted twice, done once; attached to and stopped; made whole by a second cluster when the first was killed."""
    # Two lanes and a shard of one row each: slow enough to be stopped and killed long before the end.
    settings: dict[str, Any] = {
        "manifest": {"range": {"count": ROWS, "labels": "cycle"}},
        "workers": {"count": 1},
        "sampler": {"lanes": 2},
        "target": {"steps": 50},
    }
    one = str(job_file(tmp_path, "one", output={"uri": f"{s3}/one", "shard_size": 1}, **settings))
    two = str(job_file(tmp_path, "two", output={"uri": f"{s3}/two", "shard_size": 1}, **settings))
    with ray_head(server.environment) as head:
        monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)

        def submit(*arguments: str) -> Result:
            return cli("submit", *arguments, "--address", head.address)

        result = submit(one, "--wait")
        assert result.exit_code == 0, result.output
        assert f"{ROWS} of {ROWS}" in result.output, "the job's own lines are shown"
        before = contents(Storage(f"{s3}/one"))
        result = submit(one, "--wait")
        assert (result.exit_code, result.output.splitlines()[0]) == (0, "nothing to submit: the output is done")
        assert contents(Storage(f"{s3}/one")) == before
        for command in ("verify", "status"):
            assert cli(command, f"{s3}/one").exit_code == 0

        assert submit(two).exit_code == 0
        command = [sys.executable, "-m", "pipeline.cli", "submit", two, "--wait", "--address", head.address]
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_for(Storage(f"{s3}/two"), 1)
            assert "-1 is stopped" in submit(two, "--stop").output
            output, _ = waiting.communicate(timeout=WAIT_S)
        finally:
            waiting.kill()
        assert waiting.returncode == 3, output
        assert "-1 is at work already" in output
        assert "images committed; the same command goes on from there" in submit(two, "--logs").output
        stopped_at = len(Storage(f"{s3}/two").list("commits/"))
        assert stopped_at < ROWS, "something is left to do"

        assert "-2 to" in submit(two).output
        wait_for(Storage(f"{s3}/two"), stopped_at + 1)
        head.kill()
        assert len(Storage(f"{s3}/two").list("commits/")) < ROWS
        head.start()
        result = submit(two, "--wait")
        assert result.exit_code == 0, result.output
        assert cli("verify", f"{s3}/two").exit_code == 0
    assert hashes(Storage(f"{s3}/two")) == hashes(Storage(f"{s3}/one"))
    assert len(hashes(Storage(f"{s3}/two"))) == ROWS


def contents(storage: Storage) -> dict[str, str]:
    return {path: storage.sha256(path) for path in storage.list()}


def wait_for(storage: Storage, records: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(storage.list("commits/")) < records:
        assert time.monotonic() < deadline
        time.sleep(0.1)
