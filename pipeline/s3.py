"""The S3 side of `Storage`: conditional puts, tries that are counted, and errors in words."""

from __future__ import annotations

import errno
import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import aiohttp
import s3fs
from botocore.exceptions import ConnectionError as NoConnectionError  # type: ignore[import-untyped]
from botocore.exceptions import HTTPClientError, NoCredentialsError

from pipeline.errors import Unavailable
from pipeline.storage import BLOCK_BYTES, digest_of, file_sha256

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

# Seconds between tries of a call that may succeed later: a server that restarts or throttles has half a minute.
BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
PATIENCE_S = 180.0  # after which a call that keeps failing is not tried again: one that stalls takes long to fail
CONNECT_S, ANSWER_S = 10, 60  # that a server has to accept a connection, and to begin its answer
READ_BYTES = 8 * BLOCK_BYTES  # read ahead of a file that is read bit by bit


class S3:
    """S3 through s3fs. Tries of a creation are counted here and not there: a try whose answer was lost may have
    succeeded, and only after one is finding our own bytes under the name no collision."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._root = uri.removeprefix("s3://")
        self._readers = _file_system(tries=5)
        self._writers = _file_system(tries=1)

    def read(self, path: str) -> bytes:
        return self._retried(lambda: cast(bytes, self._readers.cat_file(self._full(path))))

    def read_many(self, paths: list[str]) -> list[bytes]:
        if not paths:
            return []
        full = [self._full(path) for path in paths]
        contents = self._retried(lambda: cast("dict[str, bytes]", self._readers.cat(full)))
        return [contents[path] for path in full] if isinstance(contents, dict) else [contents]

    def read_present(self, paths: list[str]) -> dict[str, bytes]:
        wanted = {self._full(path): path for path in paths}

        def read() -> dict[str, bytes]:
            found = cast("dict[str, Any]", self._readers.cat(list(wanted), on_error="return")) if wanted else {}
            if not isinstance(found, dict):  # of a single path
                found = {next(iter(wanted)): found}
            for content in found.values():
                if isinstance(content, Exception) and not _is_absent(content):
                    raise content
            return {wanted[full]: each for full, each in found.items() if isinstance(each, bytes)}

        return self._retried(read)

    def size(self, path: str) -> int | None:
        try:
            info = self._retried(lambda: cast("dict[str, Any]", self._readers.info(self._full(path))))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def modified(self, path: str) -> float:
        info = self._retried(lambda: cast("dict[str, Any]", self._readers.info(self._full(path))))
        return float(info["LastModified"].timestamp())

    def walk(self, folder: str) -> Iterator[str]:
        start = f"{self._root}/{folder}".rstrip("/")
        try:
            found = self._retried(lambda: cast("list[str]", self._readers.find(start)))
        except FileNotFoundError:
            return
        for full in found:
            yield full[len(self._root) + 1 :]

    def folders(self, path: str) -> list[str]:
        def names() -> list[str]:
            found = cast("list[dict[str, Any]]", self._readers.ls(self._full(path).rstrip("/"), detail=True))
            return [each["name"].rpartition("/")[2] for each in found if each["type"] == "directory"]

        try:
            return self._retried(names)
        except FileNotFoundError:
            return []

    def sha256(self, path: str) -> str:
        with self.open(path) as file:
            return digest_of(file)

    def open(self, path: str) -> BinaryIO:
        size = self.size(path)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", f"{self._uri}/{path}")

        def read(start: int, stop: int) -> bytes:
            return self._retried(lambda: cast(bytes, self._readers.cat_file(self._full(path), start=start, end=stop)))

        return io.BufferedReader(_Reader(size, read), READ_BYTES)

    def create(self, path: str, data: bytes) -> None:
        def put() -> None:
            self._writers.pipe_file(self._full(path), data, mode="create")

        self._created_once(path, put, lambda: self.read(path) == data)

    def upload(self, local_path: str, path: str) -> None:
        def put() -> None:
            self._writers.put_file(local_path, self._full(path), mode="create")

        self._created_once(path, put, lambda: self.sha256(path) == file_sha256(local_path))

    def replace(self, path: str, data: bytes) -> None:
        self._retried(lambda: self._writers.pipe_file(self._full(path), data))

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._retried(lambda: self._writers.rm_file(self._full(path)))

    def remove_empty_folders(self) -> None:
        pass

    def remove_unfinished(self, ours: Callable[[str], object]) -> list[str]:
        """Multipart uploads to names in the folder."""
        bucket, _, prefix = self._root.partition("/")
        prefix = f"{prefix}/" if prefix else ""

        def uploads() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            at: dict[str, str] = {}
            while True:
                page = self._readers.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **at)
                found += page.get("Uploads", [])
                if not page.get("IsTruncated"):
                    return found
                at = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

        removed = []
        for upload in self._retried(uploads):
            path = upload["Key"][len(prefix) :]
            if ours(path):
                self._abort(bucket, upload["Key"], upload["UploadId"])
                removed.append(path)
        return removed

    def _abort(self, bucket: str, key: str, upload: str) -> None:
        with suppress(FileNotFoundError):
            self._retried(
                lambda: self._readers.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)
            )

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _created_once(self, path: str, put: Callable[[], None], holds_ours: Callable[[], bool]) -> None:
        tries = 0

        def attempt() -> None:
            nonlocal tries
            tries += 1
            try:
                put()
            except OSError as error:
                if not _is_collision(error):
                    raise
                if tries == 1 or not holds_ours():
                    raise FileExistsError(errno.EEXIST, "already there", f"{self._uri}/{path}") from error

        self._retried(attempt)

    def _retried(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        for delay in (*BACKOFF, None):
            try:
                return call()
            except Exception as error:
                if isinstance(error, (FileExistsError, Unavailable)):
                    raise
                if _is_absent(error):
                    raise
                if delay is None or not _may_pass(error) or time.monotonic() - began > PATIENCE_S:
                    raise Unavailable(f"{self._uri}: {_reason(error)}") from error
                time.sleep(delay)
        raise AssertionError("unreachable")


class _Reader(io.RawIOBase):
    """A file that is read in ranges, each tried again by itself."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        """`read(start, stop)` returns bytes of a file of `size` bytes."""
        self._size, self._read_range, self._at = size, read, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence], 0)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._take(self._size)  # where the base class would ask for 8 KiB at a time

    def _take(self, count: int) -> bytes:
        stop = min(self._at + count, self._size)
        data = self._read_range(self._at, stop) if self._at < stop else b""
        self._at += len(data)
        return data


def _file_system(tries: int) -> Any:
    """An s3fs file system of our own, with time limits and without cached listings: other processes write here too."""
    file_system = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_S,
            "read_timeout": ANSWER_S,
            "retries": {"total_max_attempts": 1},
        },
    )
    file_system.retries = tries
    return file_system


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _code(error: BaseException) -> str:
    """The S3 error code behind an exception, or ''."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _is_absent(error: Exception) -> bool:
    """Whether there is a bucket, but no such file in it."""
    return isinstance(error, FileNotFoundError) and _code(error) != "NoSuchBucket"


def _is_collision(error: OSError) -> bool:
    # s3fs reports a refused conditional put as FileExistsError or, where the server names no condition, as EINVAL.
    return isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412")


def _may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later: throttling, server errors, time-outs, connections that broke."""
    if isinstance(error, (TimeoutError, ConnectionError, NoConnectionError, HTTPClientError, aiohttp.ClientError)):
        return True
    return isinstance(error, OSError) and error.errno in (errno.EBUSY, errno.EREMOTEIO, errno.EIO)


def _reason(error: Exception) -> str:
    """One line for the user. Access keys that a server's answer repeats are left out."""
    if any(isinstance(each, NoCredentialsError) for each in _chain(error)):
        return "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
    text = str(error) if not isinstance(error, OSError) else (error.strerror or str(error))
    code = _code(error)
    line = " ".join(re.sub(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b", "…", text).split())
    return f"{code}: {line}" if code and code not in line else line or type(error).__name__
