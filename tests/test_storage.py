"""Storage, local and S3: exclusive creation, whole files, and errors in words."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import s3fs
from seaweed import Server

import pipeline.s3
from pipeline.errors import Unavailable, UsageError
from pipeline.storage import TEMPORARY_PREFIX, Storage


def test_a_name_is_created_once(storage: Storage) -> None:
    storage.create("a/b.json", b"first")
    for data in (b"first", b"second"):
        with pytest.raises(FileExistsError):
            storage.create("a/b.json", data)
    assert storage.read("a/b.json") == b"first"


def test_of_many_that_create_a_name_at_once_one_wins(storage: Storage) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> int | None:
        start.wait()
        try:
            storage.create("lease", f"{number}".encode())
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(create, range(8)) if number is not None]
    assert [f"{number}".encode() for number in winners] == [storage.read("lease")]


def test_upload_is_exclusive_and_whole(storage: Storage, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "local").write_bytes(data)
    storage.upload(str(tmp_path / "local"), "data/part")
    (tmp_path / "local").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        storage.upload(str(tmp_path / "local"), "data/part")
    assert storage.sha256("data/part") == hashlib.sha256(data).hexdigest()
    assert storage.size("data/part") == len(data)
    assert storage.list("data/") == ["data/part"]
    with storage.open("data/part") as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == data[-5:]


def test_case_11_nothing_appears_when_an_upload_fails(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, Unavailable)):
        storage.upload(str(tmp_path / "not there"), "data/part")
    assert not storage.exists("data/part")
    assert storage.list() == []


def test_replace_read_list_remove(storage: Storage) -> None:
    storage.replace("b/2", b"old")
    storage.replace("b/2", b"new")
    storage.replace("b/1", b"1")
    storage.replace("a", b"")
    assert storage.read_many(["b/2", "b/1", "a"]) == [b"new", b"1", b""]
    assert storage.read_many([]) == []
    assert storage.list() == ["a", "b/1", "b/2"]
    assert storage.list("b/") == ["b/1", "b/2"]
    assert storage.list("b/2") == ["b/2"]
    assert storage.list("c/") == []
    storage.remove("b/2")
    storage.remove("b/2")
    assert not storage.exists("b/2")
    assert not storage.exists("b"), "a folder is no file"
    for use in (storage.read, storage.size, storage.open, storage.sha256):
        with pytest.raises(FileNotFoundError):
            use("b/2")


def test_it_crosses_processes_as_its_uri(storage: Storage) -> None:
    storage.create("a", b"1")
    again = pickle.loads(pickle.dumps(storage))
    assert again.uri == storage.uri
    assert again.read("a") == b"1"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../out", "a/../b", "a//b", "a/"])
def test_paths_stay_inside(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="not a path within"):
        Storage(str(tmp_path)).create(path, b"")


def test_unfinished_local_files_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{TEMPORARY_PREFIX}1").touch()
    assert Storage(str(tmp_path)).list() == []


def test_a_local_folder_is_absolute_and_other_schemes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage("out").uri == str(tmp_path / "out")
    assert Storage(f"file://{tmp_path}/out").uri == str(tmp_path / "out")
    with pytest.raises(UsageError, match="only local folders and s3://"):
        Storage("gs://bucket/out")


@pytest.mark.parametrize("uri", ["s3://", "s3:///set", "s3://two words/set", "s3://*/set"])
def test_s3_needs_a_bucket(uri: str) -> None:
    with pytest.raises(UsageError, match="names no bucket"):
        Storage(uri)


def test_a_folder_that_cannot_be_made_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "set")
    for folder in (tmp_path / "file", tmp_path / "file" / "set", tmp_path / "link", Path("/proc/x")):
        for path in ("a", "b/c"):
            with pytest.raises(UsageError, match="choose another") as refusal:
                Storage(str(folder)).create(path, b"")
            assert str(folder) in str(refusal.value) or str(tmp_path / "file") in str(refusal.value)
    with pytest.raises(UsageError, match="in the way"):
        Storage(str(tmp_path / "file")).read("a")


@pytest.fixture
def environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pipeline.s3, "BACKOFF", (0.05, 0.05))
    return monkeypatch


def test_s3_that_cannot_be_used_is_unavailable(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        Storage("s3://not-there/x").create("a", b"")
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        Storage("s3://not-there/x").list()
    environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Unavailable, match="SignatureDoesNotMatch"):
        Storage("s3://test-bucket/x").create("a", b"")
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(Unavailable, match="Could not connect"):
        Storage("s3://test-bucket/x").exists("a")


def test_no_credentials_are_unavailable_and_no_key_is_repeated(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    with pytest.raises(Unavailable) as error:
        Storage("s3://test-bucket/x").create("a", b"")
    assert not re.search("AKIA", str(error.value))
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Unavailable, match="no credentials found"):
        Storage("s3://test-bucket/x").create("a", b"")


def test_a_creation_whose_answer_was_lost_is_no_collision(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put = s3fs.S3FileSystem._pipe_file
    lost = []

    async def put_and_lose(self: s3fs.S3FileSystem, path: str, data: bytes, **options: object) -> None:
        await put(self, path, data, **options)
        if not lost:
            lost.append(path)
            raise ConnectionResetError

    environment.setattr(s3fs.S3FileSystem, "_pipe_file", put_and_lose)
    storage = Storage(f"s3://test-bucket/{tmp_path.name}")
    storage.create("a", b"ours")
    assert lost
    with pytest.raises(FileExistsError):
        storage.create("a", b"ours")


def test_folders_and_files_that_may_be_there(storage: Storage) -> None:
    assert storage.folders() == storage.folders("none/") == []
    assert storage.read_present([]) == {}
    for path in ("b/1/x", "b/2/x", "a/x", "x"):
        storage.create(path, path.encode())
    assert storage.folders() == ["a", "b"]
    assert storage.folders("b/") == ["1", "2"]
    assert storage.folders("a/") == []
    assert storage.read_present(["a/x", "a/y", "b/1/x", "c/d"]) == {"a/x": b"a/x", "b/1/x": b"b/1/x"}
    assert storage.read_present(["a/y"]) == {}
    assert storage.read_present(["x"]) == {"x": b"x"}


def test_only_empty_folders_are_removed(storage: Storage) -> None:
    for path in ("a/b/x", "a/c/y"):
        storage.create(path, b"")
    storage.remove("a/b/x")
    storage.remove_empty_folders()
    assert storage.list() == ["a/c/y"]
    if not storage.uri.startswith("s3://"):
        assert storage.folders("a/") == ["c"]
        storage.remove("a/c/y")
        storage.remove_empty_folders()
        assert not os.path.exists(storage.uri)
