"""S3 in trouble: a server that refuses, stalls, breaks connections, restarts, or holds very much."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3fs
from flaky import TROUBLES, Flaky, Trouble, flaky
from seaweed import Server
from test_job import finish, images, job_file, start

import pipeline.s3
from pipeline.clean import clean
from pipeline.errors import Unavailable
from pipeline.storage import Storage

TRIES = 1 + len(pipeline.s3.BACKOFF)
MIB = 1 << 20


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """A proxy that S3 clients of this process find; they do not wait for it for long."""
    monkeypatch.setattr(pipeline.s3, "BACKOFF", (0.01,) * (TRIES - 1))
    monkeypatch.setattr(pipeline.s3, "ANSWER_S", 0.4)
    with flaky(server.endpoint) as running:
        for name, value in {**server.environment, "AWS_ENDPOINT_URL": running.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def behind(proxy: Flaky) -> Storage:
    """An empty storage behind the proxy."""
    return Storage(f"s3://test-bucket/{os.urandom(6).hex()}")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_that_passes_changes_nothing(proxy: Flaky, behind: Storage, tmp_path: Path, trouble: Trouble) -> None:
    def struck(call: Callable[[], object]) -> object:
        proxy.strike(trouble, times=2)
        result = call()
        assert len(proxy.struck) == 2
        return result

    (tmp_path / "local").write_bytes(b"0123456789" * 1000)
    struck(lambda: behind.create("a", b"first"))
    struck(lambda: behind.upload(str(tmp_path / "local"), "b/c"))
    for again in (lambda: behind.create("a", b"second"), lambda: behind.upload(__file__, "b/c")):
        with pytest.raises(FileExistsError):
            struck(again)
    assert struck(lambda: behind.read("a")) == b"first"
    assert struck(lambda: behind.size("a")) == 5
    assert struck(lambda: behind.list()) == ["a", "b/c"]
    assert struck(lambda: behind.read_many(["a", "b/c"])) == [b"first", b"0123456789" * 1000]
    struck(lambda: behind.replace("a", b"third"))
    assert struck(lambda: behind.read("a")) == b"third"
    with behind.open("b/c") as file:
        assert struck(lambda: file.read(15)) == b"012345678901234"
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"789"
    struck(lambda: behind.remove("a"))
    assert behind.list() == ["b/c"]


@pytest.mark.parametrize(
    ("trouble", "told"), [("refused", "SlowDown|503"), ("reset", "connect|Connection"), ("stalled", "[Tt]imeout")]
)
def test_trouble_that_stays_is_told_and_leaves_nothing(
    proxy: Flaky, behind: Storage, server: Server, trouble: Trouble, told: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: behind.create("a", b"1"),
        lambda: behind.replace("a", b"1"),
    ]
    if trouble != "stalled":  # which takes its time
        calls += [lambda: behind.list(), lambda: behind.open("a")]
    for call in calls:
        proxy.strike(trouble, times=10**6)
        with pytest.raises(Unavailable, match=told) as error:
            call()
        assert behind.uri in str(error.value)
        assert len(proxy.struck) >= TRIES
    assert not server.client().exists(behind.uri)


def test_a_call_is_not_tried_for_ever(proxy: Flaky, behind: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.s3, "PATIENCE_S", 0.6)
    proxy.strike("stalled", times=10**6)
    with pytest.raises(Unavailable):
        behind.create("a", b"1")
    assert len(proxy.struck) < TRIES


@pytest.fixture
def parts(proxy: Flaky, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that is uploaded in three parts: of 5 MiB, the least that S3 takes, and not of 50 as usual."""
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *sizes, **options: 5 * MIB)
    file = tmp_path / "parts"
    file.write_bytes(os.urandom(11 * MIB))
    return file


def unfinished(server: Server) -> list[str]:
    found = server.client().call_s3("list_multipart_uploads", Bucket="test-bucket")
    return [upload["Key"] for upload in found.get("Uploads", [])]


def test_an_upload_in_parts_is_exclusive_and_whole(proxy: Flaky, behind: Storage, server: Server, parts: Path) -> None:
    for trouble in TROUBLES:
        proxy.struck = []
        proxy.trouble = lambda method, path, trouble=trouble: (  # type: ignore[misc]
            trouble if not proxy.struck and method == "POST" and "uploadId=" in path else None
        )
        behind.upload(str(parts), trouble)
        assert proxy.struck
        assert behind.size(trouble) == parts.stat().st_size
        with behind.open(trouble) as file:
            assert file.read() == parts.read_bytes()
        with pytest.raises(FileExistsError):
            behind.upload(str(parts), trouble)
    assert unfinished(server) == []


@pytest.mark.parametrize(("method", "path"), [("PUT", "partNumber=2"), ("POST", "uploadId=")])
def test_case_11_an_upload_in_parts_that_fails_is_aborted(
    proxy: Flaky, behind: Storage, server: Server, parts: Path, method: str, path: str
) -> None:
    proxy.trouble = lambda used, asked: "refused" if used == method and path in asked else None
    with pytest.raises(Unavailable, match="SlowDown"):
        behind.upload(str(parts), "data/part")
    assert len(proxy.struck) == TRIES
    assert unfinished(server) == []
    assert behind.list() == []


def test_uploads_in_parts_of_killed_writers_are_removed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than one answer of the server lists."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    client = server.client()
    uri = f"s3://test-bucket/{tmp_path.name}"
    bucket, key = "test-bucket", f"{tmp_path.name}/data/part-{{:05d}}.parquet"
    for number in range(1005):
        client.call_s3("create_multipart_upload", Bucket=bucket, Key=key.format(number))
    client.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{tmp_path.name}/data/theirs")
    storage = Storage(uri)
    removed = storage.remove_unfinished(lambda path: path.endswith(".parquet"))
    assert len(removed) == 1005
    assert unfinished(server) == [f"{tmp_path.name}/data/theirs"]
    storage.remove_unfinished(lambda path: True)


def test_more_keys_than_one_answer_lists(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    names = [f"commits/part-{number:05d}.json" for number in range(1100)]
    uri = f"s3://test-bucket/{tmp_path.name}"
    server.client().pipe({f"{uri}/{name}": name.encode() for name in names})
    storage = Storage(uri)
    assert storage.list("commits/") == names
    assert storage.list("commits/part-010") == [name for name in names if name.startswith("commits/part-010")]
    assert storage.read_many(names) == [name.encode() for name in names]


def test_a_server_that_restarts_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.s3, "BACKOFF", (0.5,) * 120)  # a minute, as S3 has it, but in small steps
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    storage = Storage(f"s3://test-bucket/{os.urandom(6).hex()}")
    storage.create("before", b"1")
    server.kill()
    restart = threading.Timer(2, server.start)
    restart.start()
    try:
        storage.create("after", b"2")
        assert storage.read_many(["before", "after"]) == [b"1", b"2"]
    finally:
        restart.join()


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "bucket"])
def test_every_call_tells_of_wrong_credentials_and_buckets(
    proxy: Flaky, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    if variable != "bucket":
        monkeypatch.setenv(variable, "wrong")
    storage = Storage("s3://not-there/x" if variable == "bucket" else "s3://test-bucket/x")
    calls: list[Callable[[], object]] = [
        lambda: storage.create("a", b""),
        lambda: storage.upload(__file__, "a"),
        lambda: storage.replace("a", b""),
        lambda: storage.read_many(["a", "b"]),
        lambda: storage.list(),
        lambda: storage.remove_unfinished(lambda path: True),
    ]
    if variable != "bucket":  # that one file is not there is true enough
        calls += [lambda: storage.exists("a"), lambda: storage.read("a"), lambda: storage.open("a")]
    told = "NoSuchBucket" if variable == "bucket" else "SignatureDoesNotMatch|InvalidAccessKeyId|Forbidden|AccessDenied"
    for call in calls:
        with pytest.raises(Unavailable, match=told):
            call()


def test_a_job_gets_through_a_server_in_trouble(
    server: Server, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fifth of all requests nothing comes, or the answer is lost; they stall no longer than a retry takes."""
    chance = random.Random(0)
    job = job_file(
        tmp_path, target={"name": "fashion-mnist", "steps": 5}, manifest={"range": {"count": 40, "labels": "cycle"}}
    )
    uri = f"s3://test-bucket/{tmp_path.name}"
    with flaky(server.endpoint) as proxy:
        proxy.trouble = lambda method, path: (
            chance.choice(("refused", "reset", "lost")) if chance.random() < 0.2 else None
        )
        environment = {**server.environment, "AWS_ENDPOINT_URL": proxy.endpoint, "RAY_ADDRESS": ""}
        output, status = finish(start(job, "--output", uri, **environment))
        assert len(proxy.struck) > 20
    assert status == 0, output
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert len(images(Storage(uri))) == 40
    assert all(shard.attempt == 1 for shard in pipeline.commits.committed(Storage(uri)))
    assert clean(uri) == []
